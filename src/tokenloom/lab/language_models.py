"""Section 2: language models before transformers: n-grams and recurrent networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tokenloom.lab.corpus import CORPUS, corpus_text, ngram_metrics
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
    question="Is E x for a one-hot x the same as a table lookup?",
    protocol="The product with one-hot vectors against rows of the table, 65 × 16.",
    explanation="All but one term of the product are zero. A table lookup gives the same numbers without the product.",
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


def trained_bpe(ctx: ExperimentContext, merges: int) -> BPE:
    """Return the tokenizer of 2.2; ties go to the pair that occurs first."""
    text = corpus_text()
    return ctx.cached(
        ("bpe", merges), lambda: BPE.train(text[:100_000], num_merges=merges, ties="first", alphabet=text)
    )


@experiment(
    "2.2",
    "Byte-pair merges",
    question="Which tokens does byte-pair encoding find in the plays?",
    protocol="200 merges on the first 100,000 characters, alphabet of the whole corpus; ties to the pair that occurs "
    "first.",
    explanation="The most frequent pair becomes a token, again and again. Short words and endings come first; late "
    "merges are specific to this part of the corpus: a name in capitals.",
    dataset=CORPUS,
)
def merges(ctx: ExperimentContext) -> Outcome:
    """2.2."""
    tokenizer = trained_bpe(ctx, 200)
    tokens = [repr(tokenizer.decode([65 + i])) for i in range(200)]
    return Outcome([exact("first 24", FIRST, " ".join(tokens[:24])), exact("last 12", LAST, " ".join(tokens[-12:]))])


@experiment(
    "2.3",
    "Characters per token",
    question="How many characters does a token have after more merges?",
    protocol="The last 20,000 characters with 0, 50, 100, 200 merges.",
    explanation="Each merge shortens the text, with diminishing returns: the remaining pairs are rarer.",
    dataset=CORPUS,
)
def covered(ctx: ExperimentContext) -> Outcome:
    """2.3."""
    tail = corpus_text()[-20_000:]
    counts = [0, 50, 100, 200]
    found = [20_000 / len(trained_bpe(ctx, count).encode(tail)) for count in counts]
    lines = [Line("characters/token", counts, found)]
    plot = Plot("Characters per token", "Every merge adds less.", "merges", "characters/token", lines)
    pairs = zip(counts, ("1.00", "1.37", "1.57", "1.76"), found, strict=True)
    return Outcome([exact(f"{count} merges", text, f"{value:.2f}") for count, text, value in pairs], [plot])


def show_tokens(ctx: ExperimentContext, text: str) -> str:
    """Return a text in tokens of 2.2, separated by spaces."""
    tokenizer = trained_bpe(ctx, 200)
    return " ".join(map(tokenizer.token_text, tokenizer.encode(text)))


@experiment(
    "2.4",
    "Unseen words",
    question="How are words tokenized that do not occur in the plays?",
    protocol="“The transformer tokenizes unfamiliar words.” with the 200 merges of 2.2; ␣ = space.",
    explanation="An unseen word is split into known tokens, down to single characters. Nothing is out of vocabulary.",
    dataset=CORPUS,
)
def unseen(ctx: ExperimentContext) -> Outcome:
    """2.4."""
    expected = "T he ␣t r an s f or m er ␣to k en i z es ␣ un f a m i l i ar ␣wor d s ."
    return Outcome([exact("tokens", expected, show_tokens(ctx, "The transformer tokenizes unfamiliar words."))])


@experiment(
    "2.4b",
    "A line of the play",
    question="How is a line of the play tokenized?",
    protocol="“First Citizen: we are accounted poor citizens.” with the 200 merges of 2.2.",
    explanation="Frequent words and names of speakers are one or few tokens, so the line takes fewer tokens.",
    dataset=CORPUS,
)
def seen(ctx: ExperimentContext) -> Outcome:
    """2.4b."""
    expected = "F irst ␣C itizen : ␣we ␣are ␣a c c ou n t ed ␣p o or ␣c itizen s ."
    return Outcome([exact("tokens", expected, show_tokens(ctx, "First Citizen: we are accounted poor citizens."))])


WINDOWS = "8 batches of 64 windows of 64 characters of the validation part, starts drawn with G(123)."


@experiment(
    "2.5",
    "The unigram",
    question="How well do character frequencies alone predict?",
    protocol="Add-one smoothed counts; " + WINDOWS,
    explanation="Without context the perplexity is 29 of 65 characters.",
    dataset=CORPUS,
)
def unigram(ctx: ExperimentContext) -> Outcome:
    """2.5."""
    found = ngram_metrics(ctx, model="unigram")
    return Outcome(
        [
            exact("nats/character", "3.3580", f"{found['loss']:.4f}"),
            exact("perplexity", "28.73", f"{found['perplexity']:.2f}"),
        ]
    )


@experiment(
    "2.6",
    "The bigram",
    question="How much does one character of context help?",
    protocol="Add-one smoothed counts; " + WINDOWS,
    explanation="One character of context more than halves the perplexity. The model is a table of 65 × 65 numbers.",
    dataset=CORPUS,
)
def bigram(ctx: ExperimentContext) -> Outcome:
    """2.6."""
    found = ngram_metrics(ctx, model="bigram")
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
    question="Up to which order do n-grams improve?",
    protocol="Orders 1 … 8, add-one and interpolated Kneser–Ney; order 6 with sliding context on the whole validation "
    "part. Each order on " + WINDOWS,
    explanation="Adding one to every count fails for long contexts, since most have never been seen. Kneser–Ney backs "
    "off to shorter ones and beats the chapter's small RNN and GPT: it is the baseline that a transformer has to beat.",
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
        both = [
            ngram_metrics(ctx, both=True, model="ngram", ngram_order=order, ngram_smoothing=smoothing)
            for order in tried
        ]
        losses = [found["loss"] for found in both]
        lines.append(Line(f"{smoothing}, training", tried, [found["training_loss"] for found in both]))
        lines.append(Line(f"{smoothing}, validation", tried, losses))
        best[smoothing] = tried[int(np.argmin(losses))]
        measurements.append(shown(f"{smoothing}: best order", str(best[smoothing])))
    kneser = lines[3].y[tried.index(6)]
    measurements.append(near("Kneser–Ney, order 6, windows", 1.611, kneser, 0.005, 3))
    if not ctx.quick:
        sliding = ngram_metrics(ctx, model="ngram", ngram_order=6, ngram_smoothing="kneser-ney", sliding=True)["loss"]
        measurements.append(near("Kneser–Ney, order 6, sliding context", 1.555, sliding, 0.01, 3))
    measurements.append(
        holds("add-one fails for long contexts", "best order below 6", f"order {best['add-k']}", best["add-k"] < 6)
    )
    for name, reached in (("the Elman network of 2.9", 2.188), ("the GPT of 3.4", 1.9085)):
        lines.append(Line(f"{name}, {reached:g}", tried, [reached] * len(tried)))
        measurements.append(at_least(f"{name} − Kneser–Ney, order 6", 0.0, reached - kneser, "Kneser–Ney is better"))
    gap = lines[3].y[-1] - lines[2].y[-1]
    measurements.append(shown(f"Kneser–Ney, order {tried[-1]}: validation − training", f"{gap:.3f}"))
    caption = "With add-one both losses rise again; with Kneser–Ney training keeps falling and validation levels off."
    return Outcome(measurements, [Plot("Loss against order", caption, "order", "nats/character", lines)])


# The step at which the two are compared.
GPT_STEPS = 300


@experiment(
    "2.9",
    "An Elman network",
    question="Which loss does a small recurrent network reach?",
    protocol="M = 128 tanh units, seed 12, Adam 3e-3, 301 steps, 32 windows of 64 drawn with G(1), norm clipped at 1; "
    + WINDOWS
    + " Compared with the GPT of 3.4 at step 300.",
    explanation="One vector is the whole state of the network. After 300 steps its loss is lower than that of the GPT "
    "of 3.4, and a step is cheaper; the GPT is better later.",
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
        own_seconds, gpt_seconds = (float(np.median(one.seconds)) for one in (trained, gpt))
        measurements += [
            at_least("validation of the GPT of 3.4 at step 300 − of this at 300", 0.1, ahead, "2.377 − 2.188"),
            at_least("CPU time per step, GPT ÷ this", 1.0, gpt_seconds / own_seconds, "this is cheaper"),
            shown(
                "milliseconds per step, this and the GPT",
                f"{own_seconds * 1e3:.0f}, {gpt_seconds * 1e3:.0f}",
            ),
        ]
        lines.append(Line("GPT of 3.4", list(range(GPT_STEPS)), gpt.losses[:GPT_STEPS]))
        caption = "Training loss of every step: the recurrent network is better for the first 300 steps."
    return Outcome(measurements, [Plot("Training of an Elman network", caption, "step", "nats/character", lines)])


WIDTH, LENGTH = 64, 60
DISTANCES = (0, 10, 30, 59)


def tanh_gradients(ctx: ExperimentContext, gain: float) -> torch.Tensor:
    """Return the gradient norms of a tanh network whose recurrent matrix is gain × a random orthogonal one."""
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
    """Return the largest |dE/dz_n| ÷ (|dE/dz_N| s^(N−n)), which is at most 1.

    s is the largest singular value of gain × orthogonal; the slope of tanh is at most one.
    """
    back = torch.arange(len(norms) - 1, -1, -1, dtype=torch.float64)
    # The tolerance is for rounding in float32.
    return (norms.double() / (norms[-1].double() * gain**back))[:-1].max().item() / (1 + 1e-4)


def gated_gradients(ctx: ExperimentContext, kind: str) -> torch.Tensor:
    """Return the gradient norms of an LSTM or GRU whose forget or update gate is near one."""
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
    question="How large is the gradient sixty steps back?",
    protocol="tanh network, M = 64, N = 60, W_zz = gain × random orthogonal, G(0); |dE/dz| by step.",
    explanation="Backpropagation multiplies Jacobians: gradients vanish below one and explode above one. A gate near "
    "one lets an LSTM or GRU pass the gradient on almost unchanged. W_zz is built from the protocol's draws.",
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
        norms = tanh_gradients(ctx, gain)
        lines.append(Line(f"tanh, gain {gain:g}", steps, norms.tolist()))
        for back, text in zip(DISTANCES, texts, strict=True):
            found = norms[LENGTH - 1 - back].item()
            if ctx.default_seed:
                measurements.append(
                    exact(f"gain {gain:g}, N − {back}", text, f"{found:.2f}" if "e" not in text else f"{found:.2e}")
                )
        measurements.append(at_most(f"gain {gain:g}: largest |dE/dz| ÷ its bound", 1.0, over_bound(norms, gain), "≤ 1"))
    exploded = tanh_gradients(ctx, 3.0)
    lines.append(Line("tanh, gain 3", steps, exploded.tolist()))
    measurements.append(at_most("gain 3: largest |dE/dz| ÷ its bound", 1.0, over_bound(exploded, 3.0), "≤ 1"))
    # Chaotic, so other seeds vary more.
    low, high = (1e5, 1e8) if ctx.default_seed else (1e3, 1e10)
    measurements.append(between("gain 3, first step", low, high, exploded[0].item(), "1e5 … 1e8"))
    for kind in ("lstm", "gru"):
        norms = gated_gradients(ctx, kind)
        lines.append(Line(f"{kind.upper()}, gate near one", steps, norms.tolist()))
        measurements.append(
            between(f"{kind.upper()}: first ÷ last", 0.05, 20, (norms[0] / norms[-1]).item(), "own figure")
        )
    caption = "Small gains vanish within a few tokens, a large one explodes, gated cells pass the gradient on."
    plot = Plot("|dE/dz| along the text", caption, "token", "norm of the gradient", lines, log_y=True)
    return Outcome(measurements, [plot])
