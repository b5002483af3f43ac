"""What is running: the device, its driver, and the versions of everything above it."""

from __future__ import annotations

import platform
from importlib import metadata

from roofline import hardware
from roofline.support.record import Device


def device_here() -> tuple[str, Device, str | None]:
    """The kind of device ('cuda' or 'cpu'), what to record of it, and its driver."""
    found = hardware.discover()
    capability = found.compute_capability
    device = Device(
        name=found.name,
        compute_capability=".".join(map(str, capability)) if capability else None,
        sms=found.sms,
        memory_bytes=found.memory_bytes,
        l2_bytes=found.l2_bytes,
    )
    return found.kind, device, found.driver


def versions() -> dict[str, str]:
    """Versions of what a measurement depends on; what is not installed is left out."""
    import torch

    import roofline

    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in ("triton", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if rocm := getattr(torch.version, "hip", None):
        found["rocm"] = rocm
    found["roofline"] = roofline.__version__
    return found
