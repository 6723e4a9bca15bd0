"""Generation of 500 tokens, with 4 layers of 128 and random weights, sampled at temperature 0.8.

The context holds the prompt and all new tokens, for both. One more row has a context of 256, beyond which tokenloom
recomputes the last 256 tokens at each token; no peer does that.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import data
from benchmarks.harness import Goal, Row, Runner, Setting, at_least, compare, progress, rate, timed
from benchmarks.peers.framework import gpt2
from tokenloom.kernels import loader
from tokenloom.tasks.text_generation import TextGeneration

CONTEXT, D, H, L = 1024, 128, 4, 4
PROMPT, TOKENS, MANY = 16, 500, 32


@dataclass(frozen=True)
class Backend:
    """A backend of generation. context: selects it. goal: speedup against the peer."""

    name: str
    context: Callable[[], AbstractContextManager[None]]
    goal: Goal


TORCH = Backend("without native code", loader.disabled, at_least(4))
# The default with a C++ compiler.
FUSED = Backend("fused decode kernel", nullcontext, at_least(10))


def our_task(context: int) -> TextGeneration:
    """Return a task with a random model without zero matrices, which untrained models have."""
    task, _ = data.prepared(context=context, width=D, depth=L, heads=H)
    model = task.build_model(0)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                torch.nn.init.normal_(parameter, std=0.02)
    task.model = model.eval()
    return task


def their_generate(task: TextGeneration, prompts: list[str], tokens: int) -> Callable[[], Any]:
    """Return `generate` of transformers with its cache, from the same ids."""
    model = gpt2(task.tokenizer.vocab_size, CONTEXT, D, H, L).eval()
    model.generation_config.pad_token_id = 0
    ids = torch.tensor([task.tokenizer.encode(prompt).tolist() for prompt in prompts])

    def generate() -> Any:
        ids_out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            do_sample=True,
            temperature=0.8,
            top_k=0,
            use_cache=True,
        )
        assert ids_out.shape == (len(prompts), PROMPT + tokens)
        return ids_out

    return generate


def with_backend(backend: Backend, work: Runner) -> Runner:

    def run() -> float:
        with backend.context():
            return work()

    return run


def per_prompt(many: Runner) -> Runner:
    return lambda: many() / MANY


def measure(setting: Setting) -> list[Row]:
    tokens = 100 if setting.quick else TOKENS
    task = our_task(CONTEXT)
    text = data.text()
    prompts = [text[i * 1000 : i * 1000 + PROMPT] for i in range(MANY)]
    name = f"{tokens} tokens after one prompt"

    def generate() -> None:
        assert len(task.generate(prompts[0], max_new_tokens=tokens)) == tokens

    def generate_many() -> None:
        assert len(task.generate_all(prompts, max_new_tokens=tokens)) == MANY

    theirs = timed(their_generate(task, prompts[:1], tokens))
    theirs_many = timed(their_generate(task, prompts, tokens))
    per_token: dict[str, Any] = {"scale": 1e3 / tokens, "unit": "ms/token"}
    rows = []
    for backend in (TORCH, FUSED):
        if backend is FUSED and (reason := loader.unavailable_reason("decode")):
            progress(f"no {backend.name}: {reason}")
            continue
        one, many = with_backend(backend, timed(generate)), with_backend(backend, timed(generate_many))
        goal = backend.goal if setting.threads == 1 else None
        peer = "transformers' generate, with its cache"
        rows.append(compare(f"{name}: {backend.name}", one, peer, theirs, setting, goal=goal, **per_token))
        batched = f"{MANY} prompts in one batch: {backend.name}"
        goal = at_least(10) if setting.threads == 1 and backend is TORCH else None
        rows.append(compare(batched, per_prompt(many), "one prompt", one, setting, goal=goal, **per_token))
        peer = f"transformers' generate of {MANY}"
        rows.append(compare(batched, per_prompt(many), peer, per_prompt(theirs_many), setting, **per_token))
        rows.append(rate(f"{name}: {backend.name}", one, tokens, "tokens/s", setting))
    windowed = our_task(256)
    sliding = timed(lambda: windowed.generate(prompts[0], max_new_tokens=tokens))
    rows.append(rate(f"{name}, context 256", sliding, tokens, "tokens/s", setting))
    return rows
