"""What metrics.jsonl keeps of a training: each evaluation, and the mean loss of every few steps."""

from __future__ import annotations

from tokenloom.runs.folder import RunFolder
from tokenloom.training.events import Evaluated, Event, Finished, Resumed, StepFinished
from tokenloom.training.settings import TrainingSettings

EVERY = 10


class MetricsLogger:
    """Writes the events of one training into its run, as they come."""

    def __init__(self, folder: RunFolder, training: TrainingSettings) -> None:
        self.folder, self.training = folder, training
        self._recent: list[StepFinished] = []

    def write(self, event: Event) -> None:
        """Keep what is to be kept of an event."""
        if isinstance(event, Resumed):
            self.folder.update_training(self.training)
            self.folder.truncate_metrics(event.step)
        elif isinstance(event, StepFinished):
            self._recent.append(event)
        elif isinstance(event, Evaluated):
            row = {"step": event.step, **{f"validation_{k}": v for k, v in event.metrics.items()}}
            self.folder.append_metrics({**row, "seconds": round(event.seconds, 3)})
        if self._recent and (self._recent[-1].step % EVERY == 0 or isinstance(event, Finished)):
            loss, last = sum(step.loss for step in self._recent) / len(self._recent), self._recent[-1]
            rates = {name: lr for name, lr in (("lr", last.lr), ("muon_lr", last.muon_lr)) if lr is not None}
            row = {"step": last.step, "loss": loss, **rates, "grad_norm": last.grad_norm}
            self.folder.append_metrics({**row, "seconds": round(last.seconds, 3)})
            self._recent.clear()
