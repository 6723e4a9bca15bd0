"""The built-in data sets: one file for each kind of source, each with its recipes in `RECIPES`."""
