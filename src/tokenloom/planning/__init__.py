"""Estimates of parameters, FLOPs, memory and time."""
