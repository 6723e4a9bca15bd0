"""Reference 3.14, digit for digit, with its own draws: ten digits reversed by one layer of encoder and of decoder."""

import pytest
import torch
from reversal import DIGITS, Reversal, drawn, exact, reversal_batch

from tokenloom.data.samples import ListSamples
from tokenloom.models.encoder_decoder import STYLES, EncoderDecoder, EncoderDecoderConfig
from tokenloom.nn.parts import count_parameters
from tokenloom.nn.taps import Taps
from tokenloom.tasks.text.pair_settings import CHAPTER_RECIPE
from tokenloom.training.events import Stepped
from tokenloom.training.loop import fit
from tokenloom.training.settings import TrainingSettings

LENGTH = 10


def test_ten_digits_are_reversed_as_printed() -> None:
    config = EncoderDecoderConfig(
        DIGITS, DIGITS, LENGTH, LENGTH, width=32, depth=1, heads=2, shared=True, **STYLES["chapter"]
    )
    model = EncoderDecoder(config, seed=5)
    # Its tables have 11 and 2 · 10 rows, of 32; 3 attentions, 2 MLPs, 6 norms, and a readout of 10.
    assert count_parameters(model) == 32 * 31 + 3 * 4 * 32**2 + 2 * (2 * 4 * 32**2 + 5 * 32) + 6 * 64 + 330
    generator = torch.Generator().manual_seed(5)
    settings, _ = TrainingSettings(steps=301, evaluate_every=1000).filled({**CHAPTER_RECIPE, "decay": "matrices"})
    losses = []
    others = ListSamples(list(torch.randint(0, DIGITS, (8, LENGTH), generator=torch.Generator().manual_seed(6))))
    for event in fit(Reversal(), model, settings, drawn(generator, 64, lambda _: LENGTH), others):
        if isinstance(event, Stepped):
            losses.append(event.loss)
    assert losses[0] == pytest.approx(2.54, abs=0.005)
    assert losses[100] == pytest.approx(0.99, abs=0.005)
    assert losses[200] == pytest.approx(0.016, abs=0.001)
    assert losses[300] == pytest.approx(0.010, abs=0.0005)
    strings = torch.randint(0, DIGITS, (500, LENGTH), generator=generator)
    assert exact(model, strings) == pytest.approx(0.990, abs=0.01)

    taps = Taps("decoder.layers.0.cross.pattern")
    with torch.no_grad():
        model(reversal_batch(strings), taps=taps)
    looked = taps.values["decoder.layers.0.cross.pattern"].mean((0, 1))
    place = torch.arange(LENGTH)
    assert int((looked.argmax(1) - (LENGTH - 1 - place)).abs().max()) <= 1
