"""Settings of training that the model that was built has no use for."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from tokenloom.errors import UserError
from tokenloom.nn.transformer import TransformerLayer
from tokenloom.training.optimizers import hidden_matrices
from tokenloom.training.settings import TrainingSettings


def refuse_without_effect(training: TrainingSettings, derived: Collection[str], model: nn.Module) -> None:
    """Raise UserError for settings that were given and do nothing to this model.

    derived: names of those that nobody gave. Muon moves the matrices of transformers, and activation checkpointing
    computes their layers again: recurrent and convolutional networks have neither.
    """
    if training.optimizer == "muon" and not hidden_matrices(model):
        for name, value in (("optimizer", "muon"), ("muon_lr", training.muon_lr)):
            if value is not None and name not in derived:
                raise UserError(
                    f"--{name.replace('_', '-')} {value} has no effect here, where no matrix of a transformer is"
                    " trained: leave it out"
                )
    if training.activation_checkpointing and not any(isinstance(part, TransformerLayer) for part in model.modules()):
        raise UserError("--activation-checkpointing has no effect on a model without transformer layers: leave it out")
