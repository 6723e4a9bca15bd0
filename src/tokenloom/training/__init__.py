"""The one loop for all tasks, and what it needs: batches, optimizers, schedules, checkpoints."""
