"""What a kernel's function asks of the device that its tensors are on."""

from __future__ import annotations

from functools import cache


@cache
def compute_capability(device) -> int:
    """Compute capability as 90 for 9.0; 0 stands for the interpreter on a CPU.

    Asked at every launch, so the driver's answer is kept.
    """
    if device.type == "cpu":
        return 0
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@cache
def sm_count(device) -> int:
    """Streaming multiprocessors of a GPU; for a CPU, 4, so that plans have a number."""
    if device.type == "cpu":
        return 4
    import torch

    return torch.cuda.get_device_properties(device).multi_processor_count
