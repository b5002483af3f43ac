"""Where each figure of the GPU table comes from, and which kind of peak it is."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from roofline.hardware import GPU

GRADES = ("datasheet", "driver", "secondary", "unverified")
PLAIN = (
    "memory_bytes",
    "memory_kind",
    "bandwidth",
    "compute_capability",
    "l2_bytes",
    "sms",
    "shared_bytes_per_sm",
    "watts",
    "nvlink",
)


@dataclass(frozen=True)
class Figure:
    """One figure of one row. `kind` is "dense" or "sparse" for a peak, else None."""

    value: object
    kind: str | None
    grade: str
    source: str


def figures_of(gpu: GPU) -> dict[str, Figure]:
    """Every figure that the row states, by name: bandwidth, peaks.bf16, ..."""
    stated = {name: (getattr(gpu, name), None) for name in PLAIN}
    stated |= {f"peaks.{d}": (rate, "dense") for d, rate in gpu.peaks.items()}
    stated |= {
        f"sparse_peaks.{d}": (rate, "sparse") for d, rate in gpu.sparse_peaks.items()
    }
    own = exceptions()
    return {
        name: Figure(value, kind, *own.get((gpu.name, name), (gpu.grade, gpu.source)))
        for name, (value, kind) in stated.items()
        if value is not None
    }


@cache
def exceptions() -> dict[tuple[str, str], tuple[str, str]]:
    """(GPU, figure) → (grade, source), where they are not the row's."""
    text = files("roofline").joinpath("data/gpu_sources.toml").read_text("utf-8")
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for entry in tomllib.loads(text)["exception"]:
        for name in entry["figures"]:
            key = (entry["gpu"], name)
            if key in found:
                raise ValueError(f"{name} of {entry['gpu']} is listed twice")
            found[key] = (entry["grade"], entry["source"])
    return found
