"""Reversal of digits with an encoder–decoder: the data, training and evaluation of experiments 3.14 and 2.10b."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tokenloom.config import fill
from tokenloom.data.samples import ListSamples
from tokenloom.generation.beam_search import BeamOptions, beam_search
from tokenloom.models.batch import Batch, Stream
from tokenloom.models.encoder_decoder import EncoderDecoder
from tokenloom.models.recurrent_translation import RecurrentTranslator
from tokenloom.training.events import StepFinished
from tokenloom.training.loop import fit
from tokenloom.training.losses import LossTerms, cross_entropy_term
from tokenloom.training.metrics import Metric
from tokenloom.training.settings import TrainingSettings

DIGITS = 10
START = DIGITS


def reversal_batch(strings: Tensor) -> Batch:
    """Return digits (B, N) as sources, and their reversals as targets (B, N), without an end token.

    The decoder reads the start token and the target without its last digit.
    """
    target = strings.flip(1)
    fed = torch.cat((torch.full_like(target[:, :1], START), target[:, :-1]), 1)
    return Batch({"source": Stream(ids=strings), "target": Stream(ids=fed)}, {"loss": target})


class Reversal:
    """The part of the task contract that the training loop needs."""

    metrics = (Metric("loss", "nats/digit", "lower"),)

    def collate(self, samples: Sequence[Tensor], context: object) -> Batch:
        """Return strings (N,) of one length as a batch."""
        return reversal_batch(torch.stack(list(samples)))

    def compute_loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        """Return the cross-entropy, in nats/digit."""
        return {"loss": cross_entropy_term(model(batch), batch.targets["loss"])}


def drawn(generator: torch.Generator, batch_size: int, lengths: Callable[[int], int]) -> Callable[[int], list[Batch]]:
    """Return a function that draws a batch of new strings for each step; `lengths` returns their length at a step."""

    def batches(step: int) -> list[Batch]:
        return [reversal_batch(torch.randint(0, DIGITS, (batch_size, lengths(step)), generator=generator))]

    return batches


def train_reversal(
    model: nn.Module,
    recipe: dict[str, Any],
    steps: int,
    generator: torch.Generator,
    lengths: Callable[[int], int],
    *,
    batch_size: int = 64,
    report_progress: Callable[[float], None] = lambda fraction: None,
) -> list[float]:
    """Train on new strings in each step, all drawn from the generator; return the loss of every step, in nats/digit.

    recipe: training settings by name. report_progress: called with the fraction of the steps that are done.
    """
    settings, _ = fill(TrainingSettings(steps=steps, eval_every=steps), recipe)
    # The loop evaluates at its end; the experiments evaluate on strings that the caller draws.
    others = ListSamples(list(torch.randint(0, DIGITS, (8, lengths(0)), generator=torch.Generator().manual_seed(6))))
    losses = []
    for event in fit(Reversal(), model, settings, drawn(generator, batch_size, lengths), others):
        if isinstance(event, StepFinished):
            losses.append(event.loss)
            report_progress(len(losses) / steps)
    return losses


def translate(model: EncoderDecoder | RecurrentTranslator, strings: Tensor) -> Tensor:
    """Return the greedily decoded outputs for strings (B, N): (B, N), each as long as its source. Uses the cache."""
    model.eval()
    rows: list[Sequence[int]] = []
    for part in torch.split(strings, 100):
        decoder = model.decoder_of(reversal_batch(part))
        found = beam_search(decoder, [[START]] * len(part), BeamOptions(1, part.shape[1]))
        rows += [best.ids for (best,) in found]
    return torch.tensor([list(row) for row in rows])


def fraction_reversed(model: EncoderDecoder | RecurrentTranslator, strings: Tensor) -> float:
    """Return the fraction of strings (B, N) that are reversed exactly by greedy decoding with the cache."""
    return (translate(model, strings) == strings.flip(1)).all(1).double().mean().item()
