"""Reversing digits with an encoder–decoder: the task of reference 3.14, and of the bottleneck, 2.10b."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tokenloom.decoding.beam import BeamOptions, beam_search
from tokenloom.models.batch import Batch, Stream
from tokenloom.models.encoder_decoder import EncoderDecoder
from tokenloom.models.recurrent_translation import RecurrentTranslator
from tokenloom.training.losses import Terms, Totals, cross_entropy_term

DIGITS = 10
START = DIGITS


def reversal_batch(strings: Tensor) -> Batch:
    """Digits (B, N) as sources, and their reversals as targets, without an end."""
    target = strings.flip(1)
    fed = torch.cat((torch.full_like(target[:, :1], START), target[:, :-1]), 1)
    return Batch({"source": Stream(ids=strings), "target": Stream(ids=fed)}, {"loss": target})


class Reversal:
    """As much of a task as the loop needs."""

    def collate(self, samples: list[Tensor], moment: object) -> Batch:
        return reversal_batch(torch.stack(samples))

    def loss(self, model: nn.Module, batch: Batch) -> Terms:
        return {"loss": cross_entropy_term(model(batch), batch.targets["loss"])}

    def summarise(self, totals: dict[str, Totals]) -> dict[str, float]:
        return {"loss": totals["loss"].value}


def drawn(generator: torch.Generator, batch: int, lengths: Callable[[int], int]) -> Callable[[int], list[Batch]]:
    """A batch of new strings each step; `lengths` gives their length at a step."""

    def batches(step: int) -> list[Batch]:
        return [reversal_batch(torch.randint(0, DIGITS, (batch, lengths(step)), generator=generator))]

    return batches


def exact(model: EncoderDecoder | RecurrentTranslator, strings: Tensor) -> float:
    """The share of strings whose greedy translation is their reversal, in pieces through the cache."""
    model.eval()
    right = 0
    for part in strings.split(100):
        decoder = model.decoder_of(reversal_batch(part))
        found = beam_search(decoder, [[START]] * len(part), BeamOptions(1, part.shape[1]))
        right += sum(list(best.ids) == row.flip(0).tolist() for (best,), row in zip(found, part, strict=True))
    return right / len(strings)
