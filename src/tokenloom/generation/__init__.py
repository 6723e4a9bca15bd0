"""Sampling, greedy decoding, beam search, streaming and scoring, for any `tokenloom.models.protocols.StepModel`."""

from tokenloom.generation.beam_search import BeamOptions, Hypothesis, beam_search
from tokenloom.generation.generate import (
    Event,
    Finished,
    Generation,
    Request,
    TokenEvent,
    generate,
    generate_all,
)
from tokenloom.generation.sampling import NonFiniteLogits, Sampling
from tokenloom.generation.score import Score, score, score_pairs
from tokenloom.generation.streaming import TextStreamer, TokenStream

__all__ = [
    "BeamOptions",
    "Event",
    "Finished",
    "Generation",
    "Hypothesis",
    "NonFiniteLogits",
    "Request",
    "Sampling",
    "Score",
    "TextStreamer",
    "TokenEvent",
    "TokenStream",
    "beam_search",
    "generate",
    "generate_all",
    "score",
    "score_pairs",
]
