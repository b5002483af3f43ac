"""What a block of this book may require: a name → (label, probe).

A probe returns None where the thing is missing, else True, a count or a version.
Nothing heavy is imported before a probe is asked.
"""

from __future__ import annotations

import importlib.util
import shutil


def _cuda() -> tuple[int, int] | None:
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None


def _hopper() -> bool:
    found = _cuda()
    return found is not None and found[0] == 9


def _devices() -> int:
    """As many as JAX sees: GPUs, or the devices that a CPU was told to pretend."""
    if importlib.util.find_spec("jax") is None:
        return 0
    import jax

    return len(jax.devices())


CONDITIONS = {
    "cuda": ("a CUDA GPU", _cuda),
    "hopper": ("a GPU of the Hopper generation", _hopper),
    "devices": ("several devices", _devices),
    "ncu": ("Nsight Compute", lambda: bool(shutil.which("ncu"))),
    "compiler": ("a C++ compiler", lambda: bool(shutil.which("c++") or shutil.which("g++"))),
}
