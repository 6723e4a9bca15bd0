"""The one loop for all tasks, and what it needs: batches, optimisers, schedules, checkpoints."""
