"""Section 2: what language models were before transformers, counted ones and recurrent ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tokenloom.lab.corpus import CORPUS, corpus_text, counted
from tokenloom.lab.elman import reference_elman
from tokenloom.lab.experiment import (
    ExperimentContext,
    Outcome,
    at_least,
    at_most,
    between,
    exact,
    experiment,
    holds,
    near,
    shown,
)
from tokenloom.lab.gpt import reference_gpt
from tokenloom.nn.recurrent import CELLS, Elman, gradients_through_time
from tokenloom.plotting.svg import Line, Plot
from tokenloom.tokenizers.bpe import BPE


@experiment(
    "2.1",
    "An embedding is a lookup",
    question="Is E x for a one-hot x more than a lookup?",
    protocol="The product with one-hot vectors against rows of the table, 65 × 16.",
    explanation="All but one term of the product are zero. A table look-up gives the same numbers without the work.",
)
def embedding(ctx: ExperimentContext) -> Outcome:
    """2.1."""
    g = ctx.generator()
    E, ids = torch.randn(16, 65, generator=g), torch.randint(65, (40,), generator=g)
    product = torch.nn.functional.one_hot(ids, 65).float() @ E.T
    looked_up = torch.nn.functional.embedding(ids, E.T)
    return Outcome([at_most("E x − column of E", 0.0, (product - looked_up).abs().max().item(), "equal")])


FIRST = (
    "' t' 'he' 'ou' ' a' ' the' ' s' ' w' 're' 'ha' 'in' ' m' ' b' 'nd' 'it' 'on' 'er' ' y' 'or' 'll' 'es' 'is' 'en'"
)
FIRST += " ' c' ' f'"
LAST = r"'es,' '\nTo' '\nBR' '\nBRU' '\nBRUTUS:' ' hear' ' r' ' de' ' se' 'ak' '\nWe' ' con'"


def merged(ctx: ExperimentContext, merges: int) -> BPE:
    """The tokenizer of 2.2: ties go to the pair met first."""
    text = corpus_text()
    return ctx.cached(
        ("bpe", merges), lambda: BPE.train(text[:100_000], num_merges=merges, ties="first", alphabet=text)
    )


@experiment(
    "2.2",
    "Byte-pair merges",
    question="Which pieces does byte-pair encoding find in the plays?",
    protocol="200 merges on the first 100,000 characters, alphabet of the whole corpus; ties to the pair met first.",
    explanation="The most frequent pair becomes a token, again and again. Short words and endings come first; late "
    "merges show what this part of the corpus is about: a name in capitals.",
    dataset=CORPUS,
)
def merges(ctx: ExperimentContext) -> Outcome:
    """2.2."""
    tokenizer = merged(ctx, 200)
    made = [repr(tokenizer.decode([65 + i])) for i in range(200)]
    return Outcome([exact("first 24", FIRST, " ".join(made[:24])), exact("last 12", LAST, " ".join(made[-12:]))])


@experiment(
    "2.3",
    "What a token covers",
    question="How much text is a token after more merges?",
    protocol="The last 20,000 characters with 0, 50, 100, 200 merges.",
    explanation="Each merge makes the text shorter, with falling returns: the pairs that are left are rarer.",
    dataset=CORPUS,
)
def covered(ctx: ExperimentContext) -> Outcome:
    """2.3."""
    tail = corpus_text()[-20_000:]
    counts = [0, 50, 100, 200]
    found = [20_000 / len(merged(ctx, count).encode(tail)) for count in counts]
    lines = [Line("characters/token", counts, found)]
    plot = Plot("Characters per token", "Every merge adds less.", "merges", "characters/token", lines)
    pairs = zip(counts, ("1.00", "1.37", "1.57", "1.76"), found, strict=True)
    return Outcome([exact(f"{count} merges", text, f"{value:.2f}") for count, text, value in pairs], [plot])


def split_up(ctx: ExperimentContext, text: str) -> str:
    """A text in tokens of 2.2, spaces shown."""
    tokenizer = merged(ctx, 200)
    return " ".join(map(tokenizer.token_text, tokenizer.encode(text)))


@experiment(
    "2.4",
    "Unseen words fall back",
    question="What becomes of words that the plays do not have?",
    protocol="“The transformer tokenizes unfamiliar words.” with the 200 merges of 2.2; ␣ = space.",
    explanation="A word that was never seen falls apart into pieces that were, down to single letters if need be. "
    "Nothing is out of vocabulary.",
    dataset=CORPUS,
)
def unseen(ctx: ExperimentContext) -> Outcome:
    """2.4."""
    expected = "T he ␣t r an s f or m er ␣to k en i z es ␣ un f a m i l i ar ␣wor d s ."
    return Outcome([exact("tokens", expected, split_up(ctx, "The transformer tokenizes unfamiliar words."))])


@experiment(
    "2.4b",
    "A line of the play",
    question="And what of a line that they do have?",
    protocol="“First Citizen: we are accounted poor citizens.” with the 200 merges of 2.2.",
    explanation="Frequent words and the names of speakers are whole tokens or nearly so: the line takes fewer tokens.",
    dataset=CORPUS,
)
def seen(ctx: ExperimentContext) -> Outcome:
    """2.4b."""
    expected = "F irst ␣C itizen : ␣we ␣are ␣a c c ou n t ed ␣p o or ␣c itizen s ."
    return Outcome([exact("tokens", expected, split_up(ctx, "First Citizen: we are accounted poor citizens."))])


EIGHT = "8 batches of 64 windows of 64 characters of the validation part, starts drawn with G(123)."


@experiment(
    "2.5",
    "The unigram",
    question="How well do the frequencies of letters alone predict?",
    protocol="Add-one smoothed counts; " + EIGHT,
    explanation="Knowing nothing of what stands before leaves 29 letters to choose from on average, out of 65.",
    dataset=CORPUS,
)
def unigram(ctx: ExperimentContext) -> Outcome:
    """2.5."""
    found = counted(ctx, model="unigram")
    return Outcome(
        [
            exact("nats/character", "3.3580", f"{found['loss']:.4f}"),
            exact("perplexity", "28.73", f"{found['perplexity']:.2f}"),
        ]
    )


@experiment(
    "2.6",
    "The bigram",
    question="How much does one letter of context help?",
    protocol="Add-one smoothed counts; " + EIGHT,
    explanation="A single letter before halves the choice and more. This is what a table of 65 × 65 numbers can do.",
    dataset=CORPUS,
)
def bigram(ctx: ExperimentContext) -> Outcome:
    """2.6."""
    found = counted(ctx, model="bigram")
    return Outcome(
        [
            exact("nats/character", "2.4859", f"{found['loss']:.4f}"),
            exact("perplexity", "12.01", f"{found['perplexity']:.2f}"),
            exact("bits", "3.586", f"{found['bits_per_token']:.3f}"),
        ]
    )


@experiment(
    "2.7",
    "Orders of n-grams",
    question="Where does more context stop paying?",
    protocol="Orders 1 … 8, add-one and interpolated Kneser–Ney; order 6 with sliding context on the whole validation "
    "part. Each order on " + EIGHT,
    explanation="Adding one to every count ruins long contexts, since most have never been seen. Kneser–Ney falls back "
    "on shorter ones and beats the chapter's small RNN and GPT: a transformer is worth having only above this line.",
    dataset=CORPUS,
    seconds=30.0,
    quick=True,
)
def orders(ctx: ExperimentContext) -> Outcome:
    """2.7."""
    tried = [1, 2, 4, 6] if ctx.quick else list(range(1, 9))
    lines, measurements = [], []
    best: dict[str, int] = {}
    for smoothing in ("add-k", "kneser-ney"):
        both = [counted(ctx, both=True, model="ngram", ngram_order=order, ngram_smoothing=smoothing) for order in tried]
        losses = [found["loss"] for found in both]
        lines.append(Line(f"{smoothing}, training", tried, [found["training_loss"] for found in both]))
        lines.append(Line(f"{smoothing}, validation", tried, losses))
        best[smoothing] = tried[int(np.argmin(losses))]
        measurements.append(shown(f"{smoothing}: best order", str(best[smoothing])))
    kneser = lines[3].y[tried.index(6)]
    measurements.append(near("Kneser–Ney, order 6, windows", 1.611, kneser, 0.005, 3))
    if not ctx.quick:
        sliding = counted(ctx, model="ngram", ngram_order=6, ngram_smoothing="kneser-ney", sliding=True)["loss"]
        measurements.append(near("Kneser–Ney, order 6, sliding context", 1.555, sliding, 0.01, 3))
    measurements.append(
        holds("adding one ruins long contexts", "best order below 6", f"order {best['add-k']}", best["add-k"] < 6)
    )
    for name, reached in (("the Elman network of 2.9", 2.188), ("the GPT of 3.4", 1.9085)):
        lines.append(Line(f"{name}, {reached:g}", tried, [reached] * len(tried)))
        measurements.append(at_least(f"{name} − Kneser–Ney, order 6", 0.0, reached - kneser, "Kneser–Ney is better"))
    apart = lines[3].y[-1] - lines[2].y[-1]
    measurements.append(shown(f"Kneser–Ney, order {tried[-1]}: validation − training", f"{apart:.3f}"))
    caption = "With add-one both losses turn up; with Kneser–Ney training goes on falling and validation levels off."
    return Outcome(measurements, [Plot("Loss against order", caption, "order", "nats/character", lines)])


# The step at which the two are held against each other.
GPT_STEPS = 300


@experiment(
    "2.9",
    "An Elman network",
    question="How far does a small recurrent network come?",
    protocol="M = 128 tanh units, seed 12, Adam 3e-3, 301 steps, 32 windows of 64 drawn with G(1), norm clipped at 1; "
    + EIGHT
    + " Beside it the GPT of 3.4 at step 300.",
    explanation="One vector is all that the network carries from letter to letter. After 300 steps it is ahead of the "
    "GPT of 3.4 at the same step, and a step is cheaper; the GPT catches up later.",
    seed=12,
    dataset=CORPUS,
    seconds=30.0,
    quick=True,
)
def elman(ctx: ExperimentContext) -> Outcome:
    """2.9."""
    trained = reference_elman(ctx)
    losses = trained.losses
    measurements = [exact("parameters", "33,217", f"{trained.parameters:,}")]
    if ctx.quick:
        measurements.append(near("training loss at 100 (coarse)", 2.49, losses[100], 0.12, 2))
    else:
        places = zip((0, 100, 200, 300), (4.211, 2.49, 2.22, 2.16), (3, 2, 2, 2), strict=True)
        for step, published, digits in places:
            measurements.append(ctx.digits(f"training loss at {step}", published, losses[step], digits, 0.12))
        measurements.append(ctx.near("validation", 2.188, trained.validation, 0.01, 0.04, 3))
    lines = [Line("Elman network", list(range(len(losses))), losses)]
    caption = "The loss falls fast and then flattens above two nats."
    if not ctx.quick:
        gpt = reference_gpt(ctx, GPT_STEPS)
        ahead = gpt.validation[GPT_STEPS] - trained.validation
        own, others = (float(np.median(one.seconds)) for one in (trained, gpt))
        measurements += [
            at_least("validation of the GPT of 3.4 at step 300 − of this at 300", 0.1, ahead, "2.377 − 2.188"),
            at_least("processor time of a step, GPT ÷ this", 1.0, others / own, "this is cheaper"),
            shown(
                "milliseconds a step, this and the GPT",
                f"{own * 1e3:.0f}, {others * 1e3:.0f}",
            ),
        ]
        lines.append(Line("GPT of 3.4", list(range(GPT_STEPS)), gpt.losses[:GPT_STEPS]))
        caption = "Training loss of every step: after 300 the recurrent network is ahead; the GPT catches up later."
    return Outcome(measurements, [Plot("An Elman network learns", caption, "step", "nats/character", lines)])


WIDTH, LENGTH = 64, 60
BACK = (0, 10, 30, 59)


def through_time(ctx: ExperimentContext, gain: float) -> torch.Tensor:
    """Gradient norms of a tanh network whose recurrent matrix is gain × a random orthogonal one."""
    g = ctx.generator()
    Q, _ = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=g))
    X, error = 0.5 * torch.randn(LENGTH, WIDTH, generator=g), torch.randn(WIDTH, generator=g)
    layer = Elman(WIDTH, WIDTH)
    with torch.no_grad():
        layer.W_zx.weight.copy_(torch.eye(WIDTH))
        layer.W_zz.weight.copy_(gain * Q.T)
        layer.W_zz.bias.zero_()
    return gradients_through_time(layer, X, error)


def over_bound(norms: torch.Tensor, gain: float) -> float:
    """The largest of |dE/dz_n| ÷ (|dE/dz_N| s^(N−n)); at most 1. s is the largest singular value of gain × orthogonal,
    and tanh has no slope above one, so a step back multiplies by no more."""
    back = torch.arange(len(norms) - 1, -1, -1, dtype=torch.float64)
    # Rounding: each step adds some units in the last place of float32.
    return (norms.double() / (norms[-1].double() * gain**back))[:-1].max().item() / (1 + 1e-4)


def gated(ctx: ExperimentContext, kind: str) -> torch.Tensor:
    """The same for an LSTM or GRU whose keeping gate is near one."""
    torch.manual_seed(ctx.seed)
    layer: Any = CELLS[kind](WIDTH, WIDTH)
    with torch.no_grad():
        layer.cell.bias_ih_l0[WIDTH : 2 * WIDTH] = 6.0
    g = ctx.generator()
    X = 0.5 * torch.randn(LENGTH, WIDTH, generator=g)
    return gradients_through_time(layer, X, torch.randn(layer.parts * WIDTH, generator=g))


@experiment(
    "2.10",
    "Gradients through time",
    question="How much of an error reaches a token sixty steps back?",
    protocol="tanh network, M = 64, N = 60, W_zz = gain × random orthogonal, G(0); |dE/dz| on the way back.",
    explanation="Going back multiplies Jacobians: below one they vanish, above one they explode. A gate that stays "
    "near one lets an LSTM or GRU pass the error on nearly whole. W_zz is built from the protocol's draws.",
)
def gradients(ctx: ExperimentContext) -> Outcome:
    """2.10."""
    published = {
        0.5: ("9.08", "1.20e-03", "2.38e-11", "1.50e-22"),
        1.0: ("9.08", "5.06e-01", "1.47e-03", "4.18e-07"),
        1.5: ("9.08", "7.46", "2.42", "1.31"),
    }
    measurements, lines = [], []
    steps = list(range(1, LENGTH + 1))
    for gain, texts in published.items():
        norms = through_time(ctx, gain)
        lines.append(Line(f"tanh, gain {gain:g}", steps, norms.tolist()))
        for back, text in zip(BACK, texts, strict=True):
            found = norms[LENGTH - 1 - back].item()
            if ctx.default_seed:
                measurements.append(
                    exact(f"gain {gain:g}, N − {back}", text, f"{found:.2f}" if "e" not in text else f"{found:.2e}")
                )
        measurements.append(at_most(f"gain {gain:g}: largest |dE/dz| ÷ its bound", 1.0, over_bound(norms, gain), "≤ 1"))
    exploded = through_time(ctx, 3.0)
    lines.append(Line("tanh, gain 3", steps, exploded.tolist()))
    measurements.append(at_most("gain 3: largest |dE/dz| ÷ its bound", 1.0, over_bound(exploded, 3.0), "≤ 1"))
    # Chaotic: with another seed it may land further off.
    low, high = (1e5, 1e8) if ctx.default_seed else (1e3, 1e10)
    measurements.append(between("gain 3, first step", low, high, exploded[0].item(), "1e5 … 1e8"))
    for kind in ("lstm", "gru"):
        norms = gated(ctx, kind)
        lines.append(Line(f"{kind.upper()}, gate near one", steps, norms.tolist()))
        measurements.append(
            between(f"{kind.upper()}: first ÷ last", 0.05, 20, (norms[0] / norms[-1]).item(), "own figure")
        )
    caption = "Small gains lose the error within a few tokens, a large one explodes, gated cells keep it."
    plot = Plot("|dE/dz| along the text", caption, "token", "norm of the gradient", lines, log_y=True)
    return Outcome(measurements, [plot])
