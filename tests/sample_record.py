"""A small record of a device that does not exist, for tests of what reads one."""

from __future__ import annotations

from roofline.support.record import Count, Device, Measurement, Record, Run, Timing
from roofline.support.targets import Target


def timing(median: float) -> Timing:
    return Timing(median, 0.99 * median, 1.02 * median, 50)


def measurement(id: str = "softmax", run: str = "run-1", **changes) -> Measurement:
    """A softmax of 1 GB in 250 µs (4 TB/s), twice as fast as the best peer."""
    fields = {
        "id": id,
        "case": {"rows": 16384, "cols": 8192},
        "dtype": "bf16",
        "run": run,
        "quantity": "bytes",
        "bytes": 10**9,
        "flops": 10**8,
        "limit": "copy",
        "ours": "roofline",
        "steps": ("naive",),
        "timings": {
            "roofline": timing(250e-6),
            "naive": timing(1000e-6),
            "torch": timing(750e-6),
            "torch.compile": timing(500e-6),
        },
        "missing": {"liger": "liger_kernel is not installed"},
        "targets": (
            Target("limit", 0.93),
            Target("best-peer", 1.0),
            Target("peer:torch", 4.0),
            Target("peer:liger", 1.0),
            Target("peer:torch", 0.7, entry="naive"),
            Target("counter:dram_bytes:torch", at_most=0.52),
        ),
    }
    return Measurement(**fields | changes)


def copy(run: str = "run-1", seconds: float = 500e-6) -> Measurement:
    """A copy of 2 GB, by default at 4 TB/s; the slower entry is 'ours'."""
    return measurement(
        "copy",
        run,
        case={"mib": 1024},
        bytes=2 * 10**9,
        flops=0,
        limit=None,
        steps=(),
        timings={"roofline": timing(1.1 * seconds), "torch": timing(seconds)},
        missing={},
        targets=(),
    )


def run(id: str = "run-1", **changes) -> Run:
    fields = {
        "id": id,
        "date": "2026-11-30",
        "command": "python -m roofline measure",
        "driver": "580.1",
        "versions": {"python": "3.12.3", "torch": "2.11.0", "triton": "3.6.0"},
        "only": (),
        "quick": False,
        "ceilings": {"copy": copy(id)},
    }
    return Run(**fields | changes)


def count(run: str = "run-1", **changes) -> Count:
    fields = {
        "id": "softmax",
        "case": {"rows": 16384, "cols": 8192},
        "dtype": "bf16",
        "run": run,
        "tool": "ncu 2025.3.1",
        "ours": "roofline",
        "entries": {
            "roofline": {"dram_bytes": 1.0e9},
            "torch": {"dram_bytes": 2.0e9},
        },
    }
    return Count(**fields | changes)


def record(**changes) -> Record:
    fields = {
        "device": Device("Test GPU 9000", "9.0", 132, 10**11, 5 * 10**7),
        "runs": {"run-1": run()},
        "measurements": (
            copy(),
            measurement(),
            measurement(case={"rows": 4096, "cols": 32768}, targets=()),
            measurement(case={"rows": 4096, "cols": 32768}, dtype="fp32", targets=()),
        ),
        "counts": (count(),),
        "overall": {"softmax": (Target("geomean:peer:torch", 2.5),)},
    }
    return Record(**fields | changes)
