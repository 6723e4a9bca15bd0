"""Hardware to plan for: peak rates and memory, from data sheets or measured."""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from tokenloom.config import flag
from tokenloom.errors import UserError
from tokenloom.utils.names import did_you_mean

THIS = "this"


@dataclass(frozen=True)
class Hardware:
    """One device.

    peaks: peak FLOP/s by dtype of the matrix products, without sparsity. memory: bytes. source: of the figures. mfu:
    measured model FLOPs utilization, None when unknown.
    """

    name: str
    peaks: Mapping[str, float]
    memory: int
    source: str = field(default="", compare=False)
    mfu: float | None = None

    @property
    def usual_dtype(self) -> Literal["float32", "bfloat16"]:
        """bfloat16 where it is clearly faster, else float32."""
        return "bfloat16" if self.peaks.get("bfloat16", 0) > 1.5 * self.peaks.get("float32", 0) else "float32"

    def peak(self, dtype: str) -> float:
        """Return the peak FLOP/s for a dtype. Raise UserError when it is unknown."""
        if dtype not in self.peaks:
            raise UserError(
                f"{flag('dtype')} {dtype}: no peak rate is known on {self.name}, only for {', '.join(self.peaks)}"
            )
        return self.peaks[dtype]


def _gpu(name: str, float32: float, bfloat16: float, gigabytes: int, source: str) -> Hardware:
    return Hardware(name, {"float32": float32 * 1e12, "bfloat16": bfloat16 * 1e12}, gigabytes * 10**9, source)


def built_in() -> dict[str, Hardware]:
    """Return the hardware known by name, with dense peak rates. float32 is plain float32, torch's default, not TF32.

    - laptop: 8 cores with AVX2 at 2.5 GHz: 8 × 2.5e9 × 2 units × 8 numbers × 2 operations = 640 GFLOP/s, 16 GB. Our own
      estimate (two fused multiply–adds of 256 bits a cycle: Intel 64 and IA-32 Architectures Optimization Reference
      Manual, on Haswell and later cores).
    - rtx-4090: 82.6 TFLOP/s, bfloat16 with float32 sums 165.2, 24 GB (NVIDIA Ada GPU Architecture whitepaper,
      appendix A).
    - a100-40, a100-80: 19.5 and 312 TFLOP/s, 40 and 80 GB (NVIDIA A100 Tensor Core GPU datasheet).
    - h100: SXM5, 66.9 and 989.4 TFLOP/s, 80 GB (NVIDIA H100 Tensor Core GPU Architecture whitepaper, table 2).
    - h200: SXM, the same chip with 141 GB (NVIDIA H200 Tensor Core GPU datasheet).
    """
    machines = [
        Hardware("laptop", {"float32": 640e9}, 16 * 10**9, "8 AVX2 cores at 2.5 GHz, own estimate"),
        _gpu("rtx-4090", 82.6, 165.2, 24, "NVIDIA Ada whitepaper, appendix A"),
        _gpu("a100-40", 19.5, 312, 40, "NVIDIA A100 datasheet"),
        _gpu("a100-80", 19.5, 312, 80, "NVIDIA A100 datasheet"),
        _gpu("h100", 66.9, 989.4, 80, "NVIDIA H100 whitepaper, table 2 (SXM5)"),
        _gpu("h200", 66.9, 989.4, 141, "NVIDIA H200 datasheet (SXM)"),
    ]
    return {machine.name: machine for machine in machines}


def find_hardware(names: Iterable[str]) -> list[Hardware]:
    """Return the hardware of these names. A name that ends in .toml is a file (see `read_hardware`).

    "this" is this machine, measured. Raise UserError for an unknown name, with the nearest known one.
    """
    known = built_in()
    found: list[Hardware] = []
    for name in names:
        if name.endswith(".toml"):
            found += read_hardware(Path(name))
        elif name == THIS:
            found.append(this_machine())
        elif (key := name.lower().replace(" ", "-")) in known:
            found.append(known[key])
        else:
            every = [THIS, *known]
            alike = [one for one in every if key and one.startswith(key)] or every
            raise UserError(
                f"{flag('hardware')} {name}: unknown{did_you_mean(key, alike) or '.'} There are {', '.join(every)}; "
                "your own hardware is a file.toml"
            )
    return found


KEYS = ("memory_gb", "float32_tflops", "bfloat16_tflops", "mfu")


def read_hardware(path: Path) -> list[Hardware]:
    """Return the hardware of a TOML file, one device per table:

        [my-box]
        memory_gb = 48
        float32_tflops = 38.7
        bfloat16_tflops = 154.8   # either rate is optional
        mfu = 0.35                # measured; optional

    Raise UserError for a missing or broken file, an unknown key, and numbers out of range.
    """
    where = f"{flag('hardware')} {path}"
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UserError(f"{where}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error
    if not data:
        raise UserError(f"{where}: has no hardware; a table is [name] with {', '.join(KEYS[:3])}")
    return [_machine(name, table, f"{where}: [{name}]") for name, table in data.items()]


def _machine(name: str, table: Any, where: str) -> Hardware:
    if not isinstance(table, dict):
        raise UserError(f"{where} is not a table; hardware is [name] with {', '.join(KEYS[:3])}")
    for key, value in table.items():
        if key not in KEYS:
            raise UserError(f"{where} has no setting {key!r}{did_you_mean(key, KEYS)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise UserError(f"{where} {key} {value!r}: must be a number above 0")
    if table.get("mfu", 1) > 1:
        raise UserError(f"{where} mfu {table['mfu']}: must be above 0 and at most 1")
    peaks = {p: table[f"{p}_tflops"] * 1e12 for p in ("float32", "bfloat16") if f"{p}_tflops" in table}
    if not peaks or "memory_gb" not in table:
        raise UserError(f"{where} lacks {'memory_gb' if peaks else 'float32_tflops or bfloat16_tflops'}")
    return Hardware(name, peaks, int(table["memory_gb"] * 1e9), "your own figures", table.get("mfu"))


def this_machine(*, budget: float = 0.3) -> Hardware:
    """Return this machine, with the measured rate of one large product. Takes about `budget` seconds per dtype."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        name, memory = torch.cuda.get_device_name(), torch.cuda.get_device_properties(device).total_memory
        peaks = {p: product_rate(device, p, budget, 4096) for p in ("float32", "bfloat16")}
    else:
        name = f"{torch.get_num_threads()} CPU thread{'s' * (torch.get_num_threads() > 1)}"
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        peaks = {"float32": product_rate(device, "float32", budget)}
    return Hardware(f"{THIS} ({name})", peaks, memory, "measured: one product of square matrices")


def product_rate(device: torch.device, dtype: str, budget: float, width: int = 1024) -> float:
    """Return the FLOP/s of the product of two square matrices: 2 width³ ÷ the shortest of several times."""
    A = torch.randn(width, width, device=device, dtype=getattr(torch, dtype))
    best = float("inf")
    began = time.perf_counter()
    while best == float("inf") or time.perf_counter() - began < budget:
        start = time.perf_counter()
        A @ A
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return float(2 * width**3 / best)
