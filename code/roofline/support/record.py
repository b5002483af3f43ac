"""The record: what was measured on one device, as raw facts in one JSON file.

It holds seconds, bytes, FLOPs and counts, never a quotient of them: values, fractions
and ratios are derived in `roofline.support.results`. Every measurement names the run
it comes from, and every run holds the ceilings measured in it, so that a fraction
never mixes two runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from roofline.support.targets import Target


class RecordError(ValueError):
    """A record that cannot be read; says which file, which field, and why."""


@dataclass(frozen=True)
class Device:
    """What ran: its exact name as the driver reports it, or 'CPU'."""

    name: str
    compute_capability: str | None = None
    sms: int | None = None
    memory_bytes: int | None = None
    l2_bytes: int | None = None

    @property
    def slug(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median, the 20th and 80th percentile, and how many."""

    median: float
    p20: float
    p80: float
    n: int


@dataclass(frozen=True)
class Measurement:
    """The timings of one case, all taken side by side in one run."""

    id: str
    case: Mapping[str, int | float | str | bool]
    dtype: str
    run: str
    quantity: str
    bytes: int
    flops: int
    limit: str | None
    ours: str
    steps: tuple[str, ...]
    timings: Mapping[str, Timing]
    missing: Mapping[str, str] = field(default_factory=dict)
    targets: tuple[Target, ...] = ()

    @property
    def work(self) -> int:
        """Bytes or FLOPs, whichever `quantity` says."""
        return self.bytes if self.quantity == "bytes" else self.flops


@dataclass(frozen=True)
class Count:
    """Hardware counters of one case: entry → counter → value."""

    id: str
    case: Mapping[str, int | float | str | bool]
    dtype: str
    run: str
    tool: str
    ours: str
    entries: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Run:
    """One call of `measure`: when, with what, and the ceilings it found.

    `only` lists the benchmarks that were asked for; it is empty when all were.
    """

    id: str
    date: str
    command: str
    driver: str | None
    versions: Mapping[str, str]
    only: tuple[str, ...] = ()
    quick: bool = False
    ceilings: Mapping[str, Measurement] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    device: Device
    runs: Mapping[str, Run] = field(default_factory=dict)
    measurements: tuple[Measurement, ...] = ()
    counts: tuple[Count, ...] = ()
    overall: Mapping[str, tuple[Target, ...]] = field(default_factory=dict)


def merge(old: Record | None, new: Record) -> Record:
    """`old` with everything that `new` measured put in its place.

    A run of everything replaces everything. A run of some benchmarks replaces those,
    each as a whole, and leaves the others with the run they came from. Counters are
    replaced only by new counters of the same benchmark.
    """
    if old is None:
        return new
    if old.device.name != new.device.name:
        raise RecordError(
            f"a record of {old.device.name!r} takes no results of {new.device.name!r}"
        )
    only = {id for run in new.runs.values() for id in run.only}
    everything = any(not run.only for run in new.runs.values())
    measured = {m.id for m in new.measurements}
    replaced = measured | only
    counted = {c.id for c in new.counts}
    measurements = _in_place(
        [] if everything else old.measurements, new.measurements, replaced
    )
    kept = [c for c in old.counts if not everything or c.id in measured]
    counts = _in_place(kept, new.counts, counted)
    overall = {
        **{
            id: targets
            for id, targets in old.overall.items()
            if not everything and id not in replaced
        },
        **new.overall,
    }
    used = {m.run for m in measurements} | {c.run for c in counts}
    runs = {id: run for id, run in {**old.runs, **new.runs}.items() if id in used}
    return replace(
        new, runs=runs, measurements=measurements, counts=counts, overall=overall
    )


def _in_place(old: Iterable[Any], new: Iterable[Any], replaced: set[str]) -> tuple:
    """Old items, those of each replaced id giving way to the new ones of that id."""
    waiting: dict[str, list[Any]] = {}
    for item in new:
        waiting.setdefault(item.id, []).append(item)
    merged: list[Any] = []
    for item in old:
        if item.id in replaced:
            merged += waiting.pop(item.id, [])
        else:
            merged.append(item)
    for items in waiting.values():
        merged += items
    return tuple(merged)
