"""Where a number comes from, and a way to listen while an expression is evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from roofline.support.record import Count, Device, Measurement, Run


@dataclass(frozen=True)
class Source:
    """kind is 'measured', 'counted' or 'datasheet'; text is for a human to read."""

    kind: str
    text: str


_listening: ContextVar[list[Source] | None] = ContextVar("listening", default=None)


@contextmanager
def collect_sources() -> Iterator[list[Source]]:
    """Collect the sources of all numbers that are looked up inside the `with`."""
    sources: list[Source] = []
    token = _listening.set(sources)
    try:
        yield sources
    finally:
        _listening.reset(token)


def note(source: Source) -> None:
    """Tell whoever is listening that a number of this source was used."""
    sources = _listening.get()
    if sources is not None and source not in sources:
        sources.append(source)


def source_of_run(device: Device, run: Run, item: Measurement | Count) -> Source:
    """In words: the device, what ran on it, when, and the command to do it again."""
    names = {"torch": "torch", "triton": "Triton", "jax": "JAX", "nccl": "NCCL"}
    names["cuda"] = "CUDA"
    versions = [f"{names[n]} {run.versions[n]}" for n in names if n in run.versions]
    if run.driver:
        versions.insert(0, f"driver {run.driver}")
    command = run.command
    if len(run.only) > 1 and "--only" in command:
        # One of several that were asked for; this much of the command does it again.
        command = f"{command.partition(' --only')[0]} --only {item.id}"
    together = item.case.get("devices", 1)
    name = f"{together} × {device.name}" if together > 1 else device.name
    where = f"{name} ({', '.join(versions)})" if versions else name
    if isinstance(item, Count):
        text = f"Counted by {item.tool} on {where}, {run.date}, by `{command}`."
        return Source("counted", text)
    timing = item.timings[item.ours]
    spread = (timing.p80 - timing.p20) / timing.median
    return Source(
        "measured",
        f"Measured on {where}, {run.date}, by `{command}`. Median of {timing.n}; "
        f"20th to 80th percentile {spread:.1%} of it.",
    )
