"""Functions that look inside trained models."""
