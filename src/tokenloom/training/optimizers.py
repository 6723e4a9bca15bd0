"""Which optimiser moves which parameter: every trained parameter stands in exactly one group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tokenloom.nn.transformer import Transformer
from tokenloom.training.settings import OptimizerSettings


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


def make_optimizers(model: nn.Module, settings: OptimizerSettings) -> list[torch.optim.Optimizer]:
    """The optimisers of a model. Each group remembers its peak rate under "peak".

    Muon: Jordan et al. 2024, here as torch has it (five Newton–Schulz steps in bfloat16, Nesterov momentum 0.95);
    AdamW: Loshchilov & Hutter 2019, fused. Raises ValueError if a parameter stands in no group or in two.
    """
    matrices = hidden_matrices(model)
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    decay = settings.weight_decay or 0.0
    muon = [name for name in named if name in matrices] if settings.optimizer == "muon" else []
    rest = [name for name in named if name not in set(muon)]
    decayed = [name for name in rest if settings.decay == "all" or name in matrices]
    plain = [name for name in rest if name not in set(decayed)]
    _check_partition(named, muon, decayed, plain)

    def tensors(names: list[str]) -> list[Tensor]:
        return [named[name] for name in names]

    optimizers: list[torch.optim.Optimizer] = []
    groups: list[dict[str, Any]] = [
        {"params": tensors(names), "weight_decay": amount}
        for names, amount in ((decayed, decay), (plain, 0.0))
        if names
    ]
    if groups:
        betas = (0.9, 0.95 if settings.beta2 is None else settings.beta2)
        optimizers.append(torch.optim.AdamW(groups, lr=settings.rate or 0.0, betas=betas, fused=True))
    if muon:
        optimizers.append(torch.optim.Muon(tensors(muon), lr=settings.matrix_rate or 0.0, weight_decay=decay))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return optimizers


def _check_partition(named: Mapping[str, Tensor], *groups: list[str]) -> None:
    together = sorted(name for group in groups for name in group)
    if together != sorted(named):
        twice = sorted({name for name in together if together.count(name) > 1})
        lost = sorted(set(named) - set(together))
        raise ValueError(f"parameters must stand in exactly one group: twice {twice}, in none {lost}")


def set_rates(optimizers: Iterable[torch.optim.Optimizer], factor: float) -> None:
    """Every group's rate = its peak rate × factor."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor


def state_tensors(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """All optimiser state as named tensors, `number/parameter/what`: for a checkpoint without pickle."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        f"{number}/{names[id(parameter)]}/{what}": value.detach().contiguous()
        if isinstance(value, Tensor)
        else torch.tensor(value)
        for number, optimizer in enumerate(optimizers)
        for parameter, state in optimizer.state.items()
        for what, value in state.items()
    }


def load_state_tensors(model: nn.Module, optimizers: list[torch.optim.Optimizer], tensors: dict[str, Tensor]) -> None:
    """The inverse of `state_tensors`. Raises ValueError for a parameter that the model does not have."""
    named = dict(model.named_parameters())
    for key, value in tensors.items():
        number, name, what = key.split("/")
        if name not in named or int(number) >= len(optimizers):
            raise ValueError(f"the optimiser state of {name!r} belongs to another model or optimiser")
        optimizer = optimizers[int(number)]
        parameter = named[name]
        place = value if value.dim() == 0 else value.to(parameter.device)
        optimizer.state[parameter][what] = place.clone()
