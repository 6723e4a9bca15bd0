"""Kernels in C++, compiled by the machine's compiler on first use.

Without one, `loader.library` returns None and torch does the same work: nothing depends on a compiler.
"""
