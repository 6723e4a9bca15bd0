"""What the task `word-vectors` is made of."""
