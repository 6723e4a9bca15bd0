"""The kinds of models that text generation can train: one file for each family."""
