# Tangled from chapters/01_gpu_architecture_tour.md: edit it there, then run `make tangle`.
# Content hash: 7e8e6de98be8c340

"""GPUs by name: what their vendors print, and what a driver reports."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

DTYPES = ("fp4", "fp8", "int8", "fp16", "bf16", "tf32", "fp32")


@dataclass(frozen=True, kw_only=True)
class GPU:
    """One row of the GPU table. None stands for unknown or not applicable."""

    name: str
    devices: tuple[str, ...]  # exact names a driver reports for this part
    vendor: str
    architecture: str
    compute_capability: tuple[int, int] | None
    memory_bytes: int  # the vendor's GB, 10**9 bytes each
    memory_kind: str
    bandwidth: float  # B/s between memory and chip
    peaks: Mapping[str, float] = field(hash=False)  # dense, FLOP/s by dtype
    sparse_peaks: Mapping[str, float] = field(hash=False)  # 2:4 sparsity
    l2_bytes: int | None = None
    sms: int | None = None
    shared_bytes_per_sm: int | None = None
    register_bytes_per_sm: int | None = None
    max_warps_per_sm: int | None = None
    watts: float | None = None
    nvlink: float | None = None  # B/s, both directions together
    source: str
    grade: str  # datasheet, driver, secondary or unverified
    notes: str

    def peak(self, dtype: str, *, sparse: bool = False) -> float:
        """Peak rate in FLOP/s (OP/s for int8), dense unless `sparse` is true.

        Raises ValueError for a dtype that the table does not know or this GPU lacks.
        """
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}")
        table = self.sparse_peaks if sparse else self.peaks
        if dtype in table:
            return table[dtype]
        kind = "sparse" if sparse else "dense"
        listed = f", only {', '.join(table)}" if table else ""
        raise ValueError(
            f"{self.name} ({self.architecture}) has no {kind} {dtype} peak in the table"
            f"{listed}. {self.notes}".rstrip()
        )


@cache
def gpus() -> tuple[GPU, ...]:
    """Every row of the GPU table, in its order."""
    table = tomllib.loads(
        files("roofline").joinpath("data/gpus.toml").read_text(encoding="utf-8")
    )
    sm_of = {tuple(sm["compute_capability"]): sm for sm in table["sm"]}
    return tuple(_gpu_from(row, sm_of) for row in table["gpu"])


def _gpu_from(row: dict[str, Any], sm_of: Mapping[tuple[int, int], dict]) -> GPU:
    """A key that GPU does not have is a TypeError: a typing error in the table."""
    facts = dict(row)
    capability = tuple(facts.pop("compute_capability", ())) or None
    sm = sm_of.get(capability, {})
    return GPU(
        devices=tuple(facts.pop("devices")),
        compute_capability=capability,
        peaks=MappingProxyType(facts.pop("peaks")),
        sparse_peaks=MappingProxyType(facts.pop("sparse_peaks", {})),
        register_bytes_per_sm=sm.get("register_bytes"),
        max_warps_per_sm=sm.get("max_warps"),
        **facts,
    )


@cache
def _by_name() -> dict[str, GPU]:
    index: dict[str, GPU] = {}
    for row in gpus():
        for name in dict.fromkeys((row.name, *row.devices)):
            if name in index:
                raise ValueError(f"{name!r} names two rows of the GPU table")
            index[name] = row
    return index


def find_gpu(name: str) -> GPU | None:
    """The row with exactly this name or device name, or None."""
    return _by_name().get(name)


def gpu(name: str) -> GPU:
    """The row with exactly this name or device name; LookupError suggests others."""
    row = find_gpu(name)
    if row is not None:
        return row
    names = [row.name for row in gpus()]
    near = [n for n in names if name.casefold() in n.casefold()]
    near = near or difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"near it: {', '.join(near)}" if near else f"known: {', '.join(names)}"
    raise LookupError(f"no GPU is called exactly {name!r}; {hint}")


@dataclass(frozen=True)
class Device:
    """What a driver says of the device at hand, and its row in the table, if any."""

    kind: str  # "cuda" (NVIDIA, and AMD through ROCm) or "cpu"
    name: str
    gpu: GPU | None = None
    sms: int | None = None
    memory_bytes: int | None = None
    l2_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    driver: str | None = None

    def __str__(self) -> str:
        if self.kind == "cpu":
            return "CPU: no GPU here; Triton kernels run in the interpreter"
        facts = f"{self.name}: {self.sms} SMs, {self.memory_bytes / 1e9:.1f} GB"
        if self.gpu is None:
            return f"{facts}; not in the GPU table, peaks unknown"
        return f"{facts}; {self.gpu.name} in the GPU table ({self.gpu.grade})"


def discover(index: int | None = None) -> Device:
    """Ask the driver, through PyTorch, what device is here.

    index: which CUDA device; the current one if None.
    Returns a Device of kind "cpu" where there is no GPU. Raises ImportError without
    PyTorch, and RuntimeError for an index that does not exist.
    """
    import torch

    if not torch.cuda.is_available():
        if index is not None:
            raise RuntimeError(f"index {index} was asked for, but there is no GPU here")
        return Device(kind="cpu", name="CPU")
    count = torch.cuda.device_count()
    index = torch.cuda.current_device() if index is None else index
    if not 0 <= index < count:
        raise RuntimeError(f"index must be from 0 to {count - 1}, got {index}")
    seen = torch.cuda.get_device_properties(index)
    return Device(
        kind="cuda",
        name=seen.name,
        gpu=find_gpu(seen.name),
        sms=seen.multi_processor_count,
        memory_bytes=seen.total_memory,
        l2_bytes=seen.L2_cache_size,
        compute_capability=None if torch.version.hip else (seen.major, seen.minor),
        driver=_driver_version(),
    )


def _driver_version(path: str = "/proc/driver/nvidia/version") -> str | None:
    try:
        words = Path(path).read_text().split("\n")[0].split()
    except OSError:
        return None
    return next((w for w in words if w[0].isdigit() and "." in w), None)
