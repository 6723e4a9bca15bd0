"""Which optimizer moves which parameter: every trained parameter stands in exactly one group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from tokenloom.nn.transformer import Transformer
from tokenloom.training.distributed import like
from tokenloom.training.muon import Muon
from tokenloom.training.settings import TrainingSettings


def hidden_matrices(model: nn.Module) -> set[str]:
    """Names of the weight matrices inside the model's transformer stacks: those that Muon is made for.

    Embeddings, positions, output heads, norms and biases are not among them, wherever they stand.
    """
    prefixes = [name for name, part in model.named_modules() if isinstance(part, Transformer)]
    linear = {
        f"{name}.weight"
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear) and any(name.startswith(f"{prefix}.") or prefix == "" for prefix in prefixes)
    }
    return {name for name, p in model.named_parameters() if name in linear and p.requires_grad}


def make_optimizers(model: nn.Module, settings: TrainingSettings) -> list[torch.optim.Optimizer]:
    """The optimizers of a model. Each group remembers its peak rate under "peak".

    Muon: Jordan et al. 2024, see `training/muon.py`; AdamW: Loshchilov & Hutter 2019, fused. Raises ValueError for
    settings that lack a rate (see `tokenloom.config.fill`), and if a parameter stands in no group or in two.
    """
    matrices = hidden_matrices(model)
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    decay = settings.weight_decay or 0.0
    muon = [p for name, p in named.items() if name in matrices and settings.optimizer == "muon"]
    adamw: dict[float, list[Tensor]] = {}
    for name, p in named.items():
        if name in matrices and settings.optimizer == "muon":
            continue
        decays = settings.weight_decay_on == "all" or name in matrices
        adamw.setdefault(decay if decays else 0.0, []).append(p)
    optimizers: list[torch.optim.Optimizer] = []
    if adamw:
        groups: list[dict[str, Any]] = [{"params": ps, "weight_decay": amount} for amount, ps in adamw.items()]
        betas = (0.9, 0.95 if settings.beta2 is None else settings.beta2)
        optimizers.append(torch.optim.AdamW(groups, lr=_given(settings, "lr"), betas=betas, fused=True))
    if muon:
        optimizers.append(Muon(muon, _given(settings, "muon_lr"), weight_decay=decay))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    check_groups(model, optimizers)
    return optimizers


def _given(settings: TrainingSettings, name: str) -> float:
    lr: float | None = getattr(settings, name)
    if lr is None:
        raise ValueError(f"the settings have no {name}: fill them in from a recipe")
    return lr


def check_groups(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Raise ValueError unless each trained parameter of the model stands in exactly one group."""
    held = [id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    lost = [name for key, name in names.items() if key not in held]
    twice = [name for key, name in names.items() if held.count(key) > 1]
    foreign = sum(key not in names for key in held)
    if lost or twice or foreign:
        raise ValueError(
            f"each parameter must stand in exactly one group: in none {lost}, in several {twice},"
            f" and {foreign} are not the model's"
        )


def set_learning_rates(optimizers: Iterable[torch.optim.Optimizer], factor: float) -> None:
    """Every group's rate = its peak rate × factor."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor


def state_tensors(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """All optimizer state as named tensors, `number/parameter/what`: for a checkpoint without pickle."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        f"{number}/{names[id(parameter)]}/{what}": torch.as_tensor(value).detach()
        for number, optimizer in enumerate(optimizers)
        for parameter, state in optimizer.state.items()
        for what, value in state.items()
    }


def load_state_tensors(model: nn.Module, optimizers: list[torch.optim.Optimizer], tensors: dict[str, Tensor]) -> None:
    """The inverse of `state_tensors`. Raises ValueError for a parameter that the optimizer does not move."""
    named = dict(model.named_parameters())
    moved = [{id(p) for group in optimizer.param_groups for p in group["params"]} for optimizer in optimizers]
    for key, value in tensors.items():
        number, name, what = key.split("/")
        if name not in named or int(number) >= len(optimizers) or id(named[name]) not in moved[int(number)]:
            raise ValueError(f"the optimizer state of {name!r} belongs to another model or optimizer")
        parameter = named[name]
        optimizers[int(number)].state[parameter][what] = like(value, parameter)
