"""Starting from another run: the backbone's weights come along, the head starts fresh, other bodies are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

import tokenloom
from tokenloom.errors import UserError
from tokenloom.runs.events import InitializedFrom
from tokenloom.runs.folder import RunFolder
from tokenloom.runs.session import start_session
from tokenloom.training.checkpoints import read_tensors
from tokenloom.training.events import Event, Finished, StepFinished

MACHINE = {"threads": 1, "device": "cpu", "batch_size": 4}
TINY = {**MACHINE, "context": 16, "width": 16, "depth": 2, "heads": 2, "tokenizer": "char"}
WORDS = "\n\n".join(f"one N\ntwo {'AB'[n % 2]}\n{'shoe' * (1 + n % 3)} N\nno.{n % 7} O" for n in range(30))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("starting")
    (folder / "rhyme.txt").write_text("One, two, buckle my shoe.0123456789 N\nno\n" * 12, "utf-8")
    (folder / "words.conll").write_text(WORDS, "utf-8")
    tokenloom.train(folder / "rhyme.txt", task="fill-mask", out=folder / "filled", steps=3, **TINY)
    tokenloom.train(folder / "rhyme.txt", task="text-generation", out=folder / "gpt", steps=2, **TINY)
    return folder


def started(folder: Path, out: str, **settings: Any) -> tuple[list[Event], dict[str, torch.Tensor]]:
    """Tag words from a run: the events, and the weights that came out."""
    arguments = {"task": "token-classification", "init_from": str(folder / "filled"), "steps": 3, **MACHINE, **settings}
    events = list(start_session(folder / "words.conll", out=folder / out, **arguments))
    return events, read_tensors(folder / out / "model.safetensors")


def test_the_body_comes_along_and_the_readout_starts_fresh(folder: Path) -> None:
    events, weights = started(folder, "still", steps=1, lr=0.0)
    (event,) = (event for event in events if isinstance(event, InitializedFrom))
    assert event.fresh == ["head.weight", "head.bias"]
    origin = read_tensors(folder / "filled" / "model.safetensors")
    assert event.taken == len(origin) - 2
    assert all(torch.equal(weights[name], origin[name]) for name in origin if not name.startswith("head."))
    config = RunFolder(folder / "still").read_config()
    assert config["training"]["init_from"] == str(folder / "filled")
    assert config["settings"]["width"] == 16
    tokenizers = [(folder / run / "tokenizer.json").read_text() for run in ("filled", "still")]
    assert tokenizers[0] == tokenizers[1]


def test_all_is_trained_or_the_head_alone(folder: Path) -> None:
    origin = read_tensors(folder / "filled" / "model.safetensors")
    for freeze in ("none", "backbone"):
        _, weights = started(folder, f"freeze-{freeze}", freeze=freeze)
        moved = {
            name.split(".")[0]
            for name in origin
            if weights[name].shape != origin[name].shape or not torch.equal(weights[name], origin[name])
        }
        assert moved == ({"backbone", "head"} if freeze == "none" else {"head"})


def test_a_head_alone_resumes_bit_for_bit(folder: Path) -> None:
    _, straight = started(folder, "straight", freeze="backbone", steps=4)
    done: list[int] = []
    arguments = {
        "task": "token-classification",
        "init_from": str(folder / "filled"),
        "freeze": "backbone",
        "steps": 4,
        **MACHINE,
    }
    fitting = start_session(folder / "words.conll", out=folder / "stopped", stop=lambda: len(done) >= 2, **arguments)
    for event in fitting:
        done += [1] * isinstance(event, StepFinished)
    assert isinstance(event, Finished)
    assert event.reason == "interrupt"
    events = list(start_session(None, out=folder / "stopped", resume=True))
    assert not any(isinstance(event, InitializedFrom) for event in events)
    stopped = read_tensors(folder / "stopped" / "model.safetensors")
    assert all(torch.equal(stopped[name], straight[name]) for name in straight)
    with pytest.raises(UserError, match="--resume: freeze is 'backbone'"):
        start_session(None, out=folder / "stopped", resume=True, freeze="none")


def test_the_same_task_takes_the_readout_along(folder: Path) -> None:
    arguments = {"task": "fill-mask", "init_from": str(folder / "filled"), "steps": 1, **MACHINE}
    events = list(start_session(folder / "rhyme.txt", **arguments))
    (event,) = (event for event in events if isinstance(event, InitializedFrom))
    assert event.fresh == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"init_from": "nowhere"}, "--init-from .*nowhere: there is no such run"),
        ({"width": 32}, "--width 32: the run of --init-from has 16"),
        ({"preset": "classic"}, "--preset classic: the run of --init-from has modern"),
        ({"tokenizer": "word"}, "--tokenizer word: .* has char"),
        ({"init_from": None, "freeze": "backbone"}, "--freeze backbone: .*--init-from"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_data_are_read(
    folder: Path, settings: dict[str, Any], message: str
) -> None:
    arguments = {"task": "token-classification", "init_from": str(folder / "filled"), **MACHINE, **settings}
    with pytest.raises(UserError, match=message):
        start_session(folder / "no data", **arguments)


def test_another_body_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="a text-generation run has no encoder"):
        start_session(folder / "words.conll", task="token-classification", init_from=str(folder / "gpt"), **MACHINE)
    with pytest.raises(UserError, match="a text-generation model cannot be initialized from another run"):
        start_session(folder / "rhyme.txt", task="text-generation", init_from=str(folder / "filled"), **MACHINE)


def test_the_first_difference_of_two_bodies_is_named(folder: Path) -> None:
    """Sizes that no setting shows, such as those of a run whose config was changed by hand."""
    fitting = start_session(
        folder / "words.conll", task="token-classification", init_from=str(folder / "filled"), **MACHINE
    )
    assert fitting.origin is not None
    with torch.no_grad():
        model: Any = fitting.origin.task.model
        model.backbone.transformer.layers[1].mlp.W_in.weight = torch.nn.Parameter(torch.zeros(3, 16))
    with pytest.raises(
        UserError, match=r"backbone.transformer.layers.1.mlp.W_in.weight has shape \(3, 16\) there, and"
    ):
        list(fitting)
