"""Small helpers that any package may import."""
