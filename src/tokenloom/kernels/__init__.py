"""Small kernels in C++, compiled by the machine's own compiler when they are first used.

Whatever goes wrong on the way, `loader.library` gives None and torch does the same work: nothing depends on a compiler.
"""
