"""Optimizers of a model: every trained parameter is in exactly one group of one optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from tokenloom.nn.transformer import Transformer
from tokenloom.training.distributed import shard_like
from tokenloom.training.muon import Muon
from tokenloom.training.settings import TrainingSettings


def hidden_matrices(model: nn.Module) -> set[str]:
    """Return the names of the trained weight matrices inside the model's transformer stacks, which Muon is made for.

    Embeddings, positions, heads, norms and biases are not among them, wherever they are.
    """
    prefixes = [name for name, part in model.named_modules() if isinstance(part, Transformer)]
    linear = {
        f"{name}.weight"
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear) and any(name.startswith(f"{prefix}.") or prefix == "" for prefix in prefixes)
    }
    return {name for name, p in model.named_parameters() if name in linear and p.requires_grad}


def make_optimizers(model: nn.Module, settings: TrainingSettings) -> list[torch.optim.Optimizer]:
    """Return the optimizers of a model: AdamW, and Muon for hidden matrices if chosen. Groups store their `peak_lr`.

    Muon: Jordan et al. 2024, see `training/muon.py`. AdamW: Loshchilov & Hutter 2019, fused. Raise ValueError when a
    learning rate is not set (see `tokenloom.config.fill`), or a parameter is in no group or in two.
    """
    matrices = hidden_matrices(model)
    weight_decay = settings.weight_decay or 0.0
    muon: list[nn.Parameter] = []
    adamw: dict[float, list[Tensor]] = {}  # parameters by their weight decay
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        if settings.optimizer == "muon" and name in matrices:
            muon.append(p)
        else:
            decays = settings.weight_decay_on == "all" or name in matrices
            adamw.setdefault(weight_decay if decays else 0.0, []).append(p)
    optimizers: list[torch.optim.Optimizer] = []
    if adamw:
        groups: list[dict[str, Any]] = [{"params": ps, "weight_decay": amount} for amount, ps in adamw.items()]
        betas = (0.9, 0.95 if settings.beta2 is None else settings.beta2)
        optimizers.append(torch.optim.AdamW(groups, lr=_required(settings, "lr"), betas=betas, fused=True))
    if muon:
        optimizers.append(Muon(muon, _required(settings, "muon_lr"), weight_decay=weight_decay))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    check_groups(model, optimizers)
    return optimizers


def _required(settings: TrainingSettings, name: str) -> float:
    value: float | None = getattr(settings, name)
    if value is None:
        raise ValueError(f"the settings have no {name}: fill them in from a recipe")
    return value


def check_groups(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Raise ValueError unless each trained parameter of the model is in exactly one group."""
    grouped = [id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    missing = [name for key, name in names.items() if key not in grouped]
    repeated = [name for key, name in names.items() if grouped.count(key) > 1]
    foreign = sum(key not in names for key in grouped)
    if missing or repeated or foreign:
        raise ValueError(
            f"each parameter must be in exactly one group: in none {missing}, in several {repeated},"
            f" and {foreign} are not the model's"
        )


def set_learning_rates(optimizers: Iterable[torch.optim.Optimizer], factor: float) -> tuple[float | None, float | None]:
    """Set the learning rate of every group to its peak × factor; return that of AdamW and of Muon, None without one."""
    rates: dict[type, float] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            rates[type(optimizer)] = group["lr"] = group["peak_lr"] * factor
    return rates.get(torch.optim.AdamW), rates.get(Muon)


def state_tensors(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Return all optimizer state as named tensors, `optimizer index/parameter/key`, for a checkpoint without pickle."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        f"{i}/{names[id(parameter)]}/{key}": torch.as_tensor(value).detach()
        for i, optimizer in enumerate(optimizers)
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def load_state_tensors(model: nn.Module, optimizers: list[torch.optim.Optimizer], tensors: dict[str, Tensor]) -> None:
    """Load the tensors of `state_tensors`. Raise ValueError for a parameter that its optimizer does not have."""
    named = dict(model.named_parameters())
    owned = [{id(p) for group in optimizer.param_groups for p in group["params"]} for optimizer in optimizers]
    for path, value in tensors.items():
        i, name, key = path.split("/")
        if name not in named or int(i) >= len(optimizers) or id(named[name]) not in owned[int(i)]:
            raise ValueError(f"the optimizer state of {name!r} belongs to another model or optimizer")
        parameter = named[name]
        optimizers[int(i)].state[parameter][key] = shard_like(value, parameter)
