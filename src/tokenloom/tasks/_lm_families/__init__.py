"""Families of language models that text generation can train."""
