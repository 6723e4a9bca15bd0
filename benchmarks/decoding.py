"""500 new tokens after a prompt, with 4 layers of 128 and random weights, sampled at temperature 0.8.

The context holds the prompt and all that is made, for both sides. One more row has tokenloom's usual context of 256,
past which it reads the last 256 tokens anew at each token, as the chapter does; no peer does that.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import texts
from benchmarks.harness import Goal, Row, Runner, Setting, at_least, compare, progress, rate, timed
from benchmarks.peers.framework import gpt2
from tokenloom.kernels import loader
from tokenloom.tasks.text_generation import TextGeneration

CONTEXT, D, H, L = 1024, 128, 4, 4
PROMPT, TOKENS, MANY = 16, 500, 32


@dataclass(frozen=True)
class Road:
    """A way in which tokenloom generates. context: what switches to it. goal: of its speed against the peer's."""

    name: str
    context: Callable[[], AbstractContextManager[None]]
    goal: Goal


PLAIN = Road("plain road", loader.disabled, at_least(4))
# What a machine with a compiler does by itself.
COMPILED = Road("compiled step", nullcontext, at_least(10))


def our_task(context: int) -> TextGeneration:
    """An untrained model in which every part matters: fresh ones have maps of zeros."""
    task, _ = texts.prepared(context=context, width=D, depth=L, heads=H)
    model = task.build_model(0)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                torch.nn.init.normal_(parameter, std=0.02)
    task.model = model.eval()
    return task


def their_generate(task: TextGeneration, prompts: list[str], tokens: int) -> Callable[[], Any]:
    """`transformers`' `generate` with its cache, from the same ids."""
    model = gpt2(task.tokenizer.vocab_size, CONTEXT, D, H, L).eval()
    model.generation_config.pad_token_id = 0
    ids = torch.tensor([task.tokenizer.encode(prompt).tolist() for prompt in prompts])

    def generate() -> Any:
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            do_sample=True,
            temperature=0.8,
            top_k=0,
            use_cache=True,
        )
        assert made.shape == (len(prompts), PROMPT + tokens)
        return made

    return generate


def on(road: Road, work: Runner) -> Runner:
    """The same work by one road."""

    def run() -> float:
        with road.context():
            return work()

    return run


def a_prompt(many: Runner) -> Runner:
    """What one of many prompts costs."""
    return lambda: many() / MANY


def measure(setting: Setting) -> list[Row]:
    tokens = 100 if setting.quick else TOKENS
    task = our_task(CONTEXT)
    text = texts.text()
    prompts = [text[i * 1000 : i * 1000 + PROMPT] for i in range(MANY)]
    what = f"{tokens} tokens after one prompt"

    def generate() -> None:
        assert len(task.generate(prompts[0], max_new_tokens=tokens)) == tokens

    def generate_many() -> None:
        assert len(task.generate_all(prompts, max_new_tokens=tokens)) == MANY

    theirs = timed(their_generate(task, prompts[:1], tokens))
    theirs_many = timed(their_generate(task, prompts, tokens))
    a_token: dict[str, Any] = {"scale": 1e3 / tokens, "unit": "ms a token"}
    rows = []
    for road in (PLAIN, COMPILED):
        if road is COMPILED and (why := loader.unavailable_reason("decode")):
            progress(f"no {road.name}: {why}")
            continue
        one, many = on(road, timed(generate)), on(road, timed(generate_many))
        goal = road.goal if setting.threads == 1 else None
        peer = "transformers' generate, with its cache"
        rows.append(compare(f"{what}: {road.name}", one, peer, theirs, setting, goal=goal, **a_token))
        at_once = f"{MANY} prompts at once, a token of each: {road.name}"
        goal = at_least(10) if setting.threads == 1 and road is PLAIN else None
        rows.append(compare(at_once, a_prompt(many), "one prompt", one, setting, goal=goal, **a_token))
        peer = f"transformers' generate of {MANY}"
        rows.append(compare(at_once, a_prompt(many), peer, a_prompt(theirs_many), setting, **a_token))
        rows.append(rate(f"{what}: {road.name}", one, tokens, "tokens a second", setting))
    usual = our_task(256)
    slide = timed(lambda: usual.generate(prompts[0], max_new_tokens=tokens))
    rows.append(rate(f"{what}, context 256", slide, tokens, "tokens a second", setting))
    return rows
