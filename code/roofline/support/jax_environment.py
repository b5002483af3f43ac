"""What is running where JAX measures several devices: which ones, and all versions.

The kernels' records ask PyTorch (`roofline.support.environment`); a process in which JAX
holds the devices asks JAX, and the driver's own files.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from roofline.support.record import Device

#: Where the NVIDIA driver says which one it is.
DRIVER = Path("/proc/driver/nvidia/version")


def device() -> Device:
    """The first of JAX's devices; a CPU is 'CPU', whichever it is."""
    import jax

    first = jax.devices()[0]
    if first.platform == "cpu":
        return Device("CPU")
    capability = getattr(first, "compute_capability", None)
    return Device(first.device_kind, capability, getattr(first, "core_count", None))


def driver() -> str | None:
    """The driver's version; None where there is no NVIDIA driver."""
    with contextlib.suppress(OSError, IndexError):
        words = DRIVER.read_text().split("\n")[0].split()
        return next((w for w in words if w[0].isdigit() and "." in w), None)
    return None


def versions() -> dict[str, str]:
    """Versions and settings that a measurement depends on, and how GPU 0 is linked."""
    found = {"python": platform.python_version()}
    for name in ("jax", "jaxlib", "torch"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    with contextlib.suppress(Exception):  # a torch without NCCL or CUDA
        import torch

        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        found["cuda"] = torch.version.cuda
    with contextlib.suppress(OSError, subprocess.CalledProcessError, IndexError):
        said = subprocess.check_output(["nvidia-smi", "topo", "-m"], text=True)
        row = next((x for x in said.splitlines() if x.startswith("GPU0")), "")
        found["link"] = row.split()[2]
    for name in ("NCCL_NVLS_ENABLE", "XLA_FLAGS"):
        found[name] = os.environ.get(name, "")
    return {name: text for name, text in found.items() if text}
