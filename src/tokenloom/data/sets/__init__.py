"""Built-in data sets: one module per kind of source, each with its recipes in `RECIPES`."""
