"""Metrics, confidence intervals and comparison of runs."""
