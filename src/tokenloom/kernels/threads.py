"""The OpenMP threads of torch, for our kernels: a second OpenMP runtime would create a second set of threads."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

RUNTIMES = ("libgomp", "libiomp5", "libomp")


@functools.cache
def entry() -> int:
    """Return the address of GOMP_parallel in the OpenMP runtime of this process; 0 where it is unknown.

    Only libraries that are mapped into memory are considered, so nothing is loaded that torch has not loaded. Of
    several, the one in torch's folder is used.
    """
    import torch

    paths = _mapped()
    own = [path for path in paths if Path(torch.__file__).parent in path.parents]
    for path in own or paths[:1]:
        try:
            address = ctypes.cast(ctypes.CDLL(str(path)).GOMP_parallel, ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
        if address:
            return address
    return 0


def _mapped() -> list[Path]:
    """Return the OpenMP runtimes of this process, on Linux."""
    try:
        lines = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    paths = {Path(line.split(maxsplit=5)[-1]) for line in lines if "/" in line}
    return sorted(path for path in paths if path.name.startswith(RUNTIMES))
