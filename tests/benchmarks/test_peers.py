"""Peers that should compute what tokenloom computes do so; the others have the same size."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.__main__ import COMPARISONS, ROOT
from benchmarks.peers import products
from benchmarks.peers.chapter_gpt import ChapterGPT, ChapterTraining
from benchmarks.peers.framework import EncoderGPT, GPT2Logits, LogitsTraining
from benchmarks.peers.nano_gpt import NanoGPT, NanoTraining
from benchmarks.quality import Trace, every, plain_trace
from tokenloom.models.batch import Batch, Stream
from tokenloom.models.gpt import GPT, GPTConfig

SIZES = (65, 64, 64, 4, 2)  # vocabulary, N, D, H, L


def ids(seed: int = 0) -> torch.Tensor:
    return torch.randint(65, (400,), generator=torch.Generator().manual_seed(seed))


def test_the_plain_implementation_draws_and_computes_what_ours_does() -> None:
    torch.manual_seed(12)
    plain = ChapterGPT(*SIZES)
    ours = GPT(GPTConfig(65, 64, width=64, depth=2, heads=4, **GPTConfig.parts("classic")), seed=12)
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in ours.parameters()) == 112_065
    X = ids().view(-1, 40)
    torch.testing.assert_close(plain(X), ours(Batch({"text": Stream(ids=X)})), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_plain_training_gives_the_published_digits(tinyshakespeare: str) -> None:
    letters = {char: i for i, char in enumerate(sorted(set(tinyshakespeare)))}
    ids = torch.tensor([letters[char] for char in tinyshakespeare])
    training, held = ids[:1_003_854], ids[1_003_854:].numpy()
    losses = [loss for _, loss in plain_trace(training, held, 65, 900).looks]
    assert losses == pytest.approx([2.457, 2.377, 2.110, 1.990, 1.927, 1.9085], abs=0.001)


def test_the_plain_training_learns() -> None:
    training = ChapterTraining(ids(), 65, batch=4)
    first = training.step()
    assert first == pytest.approx(4.4, abs=0.2)
    assert sum(training.step() for _ in range(30)) / 30 < first
    assert training.done == 31


@pytest.mark.parametrize(("make", "extra"), [(GPT2Logits, 0), (EncoderGPT, 0), (NanoGPT, 1)])
def test_no_model_of_a_peer_sees_what_comes_later(make: type[nn.Module], extra: int) -> None:
    torch.manual_seed(0)
    model = make(*SIZES).eval()
    X = ids()[:128].view(2, 64)
    changed = X.clone()
    changed[:, 40:] = (changed[:, 40:] + 1) % 65
    if extra:
        # It gives a loss, here of the tokens before the change alone.
        Y = X.clone()
        Y[:, 40:] = -1
        torch.testing.assert_close(model(X, Y), model(changed, Y))
        assert model(X, X).item() != model(changed, X).item()
    else:
        torch.testing.assert_close(model(X)[:, :40], model(changed)[:, :40])
        assert not torch.allclose(model(X)[:, 40:], model(changed)[:, 40:])


def test_the_peers_have_about_as_many_parameters() -> None:
    inside = 2 * 12 * 64 * 64  # two layers' matrices
    for make in (GPT2Logits, EncoderGPT, NanoGPT):
        size = sum(p.numel() for p in make(*SIZES).parameters())
        assert inside < size < 115_000, (make.__name__, size)


def test_the_loops_of_the_peers_learn() -> None:
    nano = NanoTraining(ids().numpy().astype("uint16"), 65, batch=4)
    before = [p.clone() for p in nano.model.parameters()]
    nano.step()
    assert any(not torch.equal(a, b) for a, b in zip(before, nano.model.parameters(), strict=True))
    loop = LogitsTraining(EncoderGPT(*SIZES), ids(), batch=4)
    assert loop.step() > sum(loop.step() for _ in range(30)) / 30


def test_the_products_are_those_of_a_step() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    B, N, D, H, L = 4, 16, 64, 4, 2
    torch.manual_seed(0)
    model = ChapterGPT(65, N, D, H, L)
    X = torch.randint(65, (B, N))
    with FlopCounterMode(display=False) as whole:
        cross_entropy(model(X).flatten(0, 1), X.flatten()).backward()
    with FlopCounterMode(display=False) as alone:
        products.run(products.linear_products(B * N, 65, D, L) + products.attention_products(B, N, D, H, L))
    assert alone.get_total_flops() == whole.get_total_flops()


def test_the_time_to_a_loss_is_that_of_the_first_look_that_reaches_it() -> None:
    trace = Trace([(1.0, 3.0), (2.0, 1.9), (3.0, 2.0), (4.0, 1.8)])
    assert trace.time_to(1.95) == 2.0
    assert trace.time_to(1.8) == 4.0
    assert trace.time_to(1.7) == float("inf")
    assert (trace.seconds, trace.loss) == (4.0, 1.8)
    assert [every(steps) for steps in (3, 40, 900)] == [1, 1, 22]


def test_every_comparison_has_a_file() -> None:
    for name in COMPARISONS:
        assert "def measure(setting: Setting) -> list[Row]:" in (ROOT / "benchmarks" / f"{name}.py").read_text("utf-8")
