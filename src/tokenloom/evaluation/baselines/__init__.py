"""Baselines: simple methods that a trained model is compared with."""
