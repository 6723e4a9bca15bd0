"""The plain implementation computes the same as tokenloom; other peers have the same size."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.__main__ import COMPARISONS, ROOT
from benchmarks.peers import matrix_products
from benchmarks.peers.framework import EncoderGPT, GPT2Logits, LogitsTraining
from benchmarks.peers.nano_gpt import NanoGPT, NanoTraining
from benchmarks.peers.plain_gpt import PlainGPT, PlainTraining
from benchmarks.quality import Trace, eval_interval, plain_trace
from tokenloom.models.batch import Batch, Stream
from tokenloom.models.gpt import GPT, GPTConfig

SIZES = (65, 64, 64, 4, 2)  # vocabulary, N, D, H, L


def ids(seed: int = 0) -> torch.Tensor:
    return torch.randint(65, (400,), generator=torch.Generator().manual_seed(seed))


def test_the_plain_implementation_equals_ours() -> None:
    torch.manual_seed(12)
    plain = PlainGPT(*SIZES)
    ours = GPT(GPTConfig(65, 64, width=64, depth=2, heads=4, **GPTConfig.parts("classic")), seed=12)
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in ours.parameters()) == 112_065
    X = ids().view(-1, 40)
    torch.testing.assert_close(plain(X), ours(Batch({"text": Stream(ids=X)})), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_plain_training_reproduces_the_published_losses(tinyshakespeare: str) -> None:
    letters = {char: i for i, char in enumerate(sorted(set(tinyshakespeare)))}
    ids = torch.tensor([letters[char] for char in tinyshakespeare])
    train_ids, val_ids = ids[:1_003_854], ids[1_003_854:].numpy()
    losses = [loss for _, loss in plain_trace(train_ids, val_ids, 65, 900).evaluations]
    assert losses == pytest.approx([2.457, 2.377, 2.110, 1.990, 1.927, 1.9085], abs=0.001)


def test_the_plain_training_learns() -> None:
    training = PlainTraining(ids(), 65, batch=4)
    first = training.step()
    assert first == pytest.approx(4.4, abs=0.2)
    assert sum(training.step() for _ in range(30)) / 30 < first
    assert training.done == 31


@pytest.mark.parametrize(("make", "extra"), [(GPT2Logits, 0), (EncoderGPT, 0), (NanoGPT, 1)])
def test_peers_are_causal(make: type[nn.Module], extra: int) -> None:
    torch.manual_seed(0)
    model = make(*SIZES).eval()
    X = ids()[:128].view(2, 64)
    changed = X.clone()
    changed[:, 40:] = (changed[:, 40:] + 1) % 65
    if extra:
        # It returns a loss; only tokens before the change have targets.
        Y = X.clone()
        Y[:, 40:] = -1
        torch.testing.assert_close(model(X, Y), model(changed, Y))
        assert model(X, X).item() != model(changed, X).item()
    else:
        torch.testing.assert_close(model(X)[:, :40], model(changed)[:, :40])
        assert not torch.allclose(model(X)[:, 40:], model(changed)[:, 40:])


def test_peers_have_similar_parameter_counts() -> None:
    inside = 2 * 12 * 64 * 64  # two layers' matrices
    for make in (GPT2Logits, EncoderGPT, NanoGPT):
        size = sum(p.numel() for p in make(*SIZES).parameters())
        assert inside < size < 115_000, (make.__name__, size)


def test_the_training_loops_of_peers_learn() -> None:
    nano = NanoTraining(ids().numpy().astype("uint16"), 65, batch=4)
    before = [p.clone() for p in nano.model.parameters()]
    nano.step()
    assert any(not torch.equal(a, b) for a, b in zip(before, nano.model.parameters(), strict=True))
    loop = LogitsTraining(EncoderGPT(*SIZES), ids(), batch=4)
    assert loop.step() > sum(loop.step() for _ in range(30)) / 30


def test_matrix_products_are_those_of_a_step() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    B, N, D, H, L = 4, 16, 64, 4, 2
    torch.manual_seed(0)
    model = PlainGPT(65, N, D, H, L)
    X = torch.randint(65, (B, N))
    with FlopCounterMode(display=False) as whole:
        cross_entropy(model(X).flatten(0, 1), X.flatten()).backward()
    with FlopCounterMode(display=False) as alone:
        matrix_products.run(
            matrix_products.linear_products(B * N, 65, D, L) + matrix_products.attention_products(B, N, D, H, L)
        )
    assert alone.get_total_flops() == whole.get_total_flops()


def test_time_to_a_loss() -> None:
    trace = Trace([(1.0, 3.0), (2.0, 1.9), (3.0, 2.0), (4.0, 1.8)])
    assert trace.time_to(1.95) == 2.0
    assert trace.time_to(1.8) == 4.0
    assert trace.time_to(1.7) == float("inf")
    assert (trace.seconds, trace.loss) == (4.0, 1.8)
    assert [eval_interval(steps) for steps in (3, 40, 900)] == [1, 1, 22]


def test_every_comparison_has_a_file() -> None:
    for name in COMPARISONS:
        assert "def measure(setting: Setting) -> list[Row]:" in (ROOT / "benchmarks" / f"{name}.py").read_text("utf-8")
