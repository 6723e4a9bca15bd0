"""Choosing tokens: sampling, greedy choice and beam search, streaming, and scoring of a given text.

Everything works on `StepModel` of `tokenloom.models.protocols`, whatever the model is inside.
"""

from tokenloom.decoding.beam import BeamOptions, Hypothesis, beam_search
from tokenloom.decoding.generate import (
    Event,
    Finished,
    Generation,
    Request,
    TokenEvent,
    generate,
    generate_all,
)
from tokenloom.decoding.samplers import NonFiniteLogits, Sampling
from tokenloom.decoding.score import Score, score, score_pairs
from tokenloom.decoding.streaming import TextStreamer, TokenStream

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
