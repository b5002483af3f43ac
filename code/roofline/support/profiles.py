"""The recorded profiles of chapter 7: the hunt's, and the book's kernels as points.

They lie in `data/profiles/`, written by `python -m roofline profile`, and hold what was
seen: seconds, bytes, traces. What follows from it is derived here.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roofline.support.sources import Source, note

if TYPE_CHECKING:
    from roofline.profiling import Trace

FOLDER = Path(__file__).parents[1] / "data" / "profiles"


class NotProfiled(LookupError):
    """There is no such record; says which command makes it."""


def _source(kind: str, facts: Mapping[str, Any], tool: str = "") -> Source:
    names = {"torch": "torch", "triton": "Triton", "cuda": "CUDA"}
    versions = [f"{names[n]} {facts['versions'][n]}" for n in names if n in facts["versions"]]
    if facts.get("driver"):
        versions.insert(0, f"driver {facts['driver']}")
    said = f"{kind.capitalize()}{f' by {tool}' if tool else ''} on {facts['device']}"
    return Source(
        kind, f"{said} ({', '.join(versions)}), {facts['date']}, by `{facts['command']}`."
    )


def median(samples: Sequence[float]) -> float:
    return statistics.median(samples)


class Stage:
    """One stage of the hunt: what was mended, how long a step took, and a trace of it."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.mended = tuple(data["mended"])
        self.error = data["error"]
        self.difference = data["difference"]
        self.samples = tuple(data["seconds"])
        self.seconds = median(self.samples)
        fifths = statistics.quantiles(self.samples, n=5, method="inclusive")
        self.spread = (fifths[-1] - fifths[0]) / self.seconds
        self._trace = data["trace"]

    @cached_property
    def trace(self) -> Trace:
        from roofline.profiling import from_json

        return from_json(self._trace)

    def count(self, question: str) -> int:
        """How many a question of `roofline.profiling` finds: count('launches')."""
        from roofline import profiling

        return len(getattr(profiling, question)(self.trace))

    def device_seconds(self, question: str) -> float:
        """How long what a question finds took on the device."""
        from roofline import profiling

        found = getattr(profiling, question)(self.trace)
        return sum(each.device_seconds for each in found)

    def dtype(self, name: str) -> int:
        """How many matrix products have inputs of this dtype."""
        from roofline.profiling import dtypes_of_matmuls

        return len(dtypes_of_matmuls(self.trace).get(name, ()))

    @property
    def products(self) -> float:
        """Seconds that the matrix products took on the device, attention left out."""
        from roofline.profiling import dtypes_of_matmuls

        found = (f for each in dtypes_of_matmuls(self.trace).values() for f in each)
        return sum(f.device_seconds for f in found if "attention" not in f.event.name)

    @property
    def busy(self) -> float:
        """Seconds of the traced step in which the device did something."""
        from roofline.profiling import busy

        return busy(self.trace)

    @property
    def host(self) -> float:
        """Seconds from the traced step's begin to its end, on the host."""
        return self.trace.events[0].seconds


class Hunt:
    """The recorded hunt: its stages, each fault mended alone, and what looking costs."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.facts = data["source"]
        self.source = _source("measured", self.facts)
        self.device = self.facts["device"]
        self.size = data["hunt"]["size"]
        self.stages = tuple(Stage(row) for row in data["hunt"]["stages"])
        self._alone = data["hunt"]["alone"]
        self._looking = data["hunt"]["looking"]

    @property
    def found(self) -> Stage:
        """The block as it was found."""
        return self.stages[0]

    @property
    def mended(self) -> Stage:
        return self.stages[-1]

    def after(self, fault: str) -> Stage:
        """The stage in which `fault` was mended last."""
        return next(s for s in self.stages if s.mended and s.mended[-1] == fault)

    def before(self, fault: str) -> Stage:
        """The stage in which `fault` was found."""
        return self.stages[self.stages.index(self.after(fault)) - 1]

    def gain(self, fault: str) -> float:
        """Seconds of a step that mending `fault` saved, after those before it."""
        return self.before(fault).seconds - self.after(fault).seconds

    def alone(self, fault: str) -> float:
        """Seconds of a step that mending `fault` and nothing else saved."""
        return self.found.seconds - median(self._alone[fault])

    def looking(self, way: str) -> float:
        """Seconds of a step while a profiler looks in some way, or of an empty range."""
        return median(self._looking[way])

    @property
    def product_flops(self) -> int:
        """FLOPs of the block's matrix products, the chapter's first equation."""
        b, s, d, h = (self.size[k] for k in ("batch", "tokens", "width", "hidden"))
        return 2 * b * s * (4 * d * d + 3 * d * h)

    @property
    def flops(self) -> int:
        """FLOPs of the products and of the causal attention."""
        b, s, d = (self.size[k] for k in ("batch", "tokens", "width"))
        return self.product_flops + 2 * b * s * s * d


class Point:
    """A kernel as it was profiled: bytes counted, FLOPs, seconds."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data, self.facts = data, data["source"]
        self.id, self.case, self.dtype = data["id"], data["case"], data["dtype"]
        self.entry, self.tool = data["entry"], data["tool"]
        self.paper = data["bytes"]
        self.flops, self.seconds = data["flops"], data["seconds"]
        counted = data["counted"]
        self.read = counted["read"] if counted else float("nan")
        self.written = counted["written"] if counted else float("nan")
        self.under_ncu = counted["nanoseconds"] * 1e-9 if counted else float("nan")
        kind = "counted" if counted else "measured"
        self.source = _source(kind, self.facts, self.tool or "")

    @property
    def moved(self) -> float:
        """Bytes read from DRAM and written to it."""
        return self.read + self.written

    @property
    def ratio(self) -> float:
        """Bytes counted over bytes on paper."""
        return self.moved / self.paper

    @property
    def bandwidth(self) -> float:
        return self.moved / self.seconds

    @property
    def intensity(self) -> float:
        return self.flops / self.moved

    @property
    def throughput(self) -> float:
        return self.flops / self.seconds


@cache
def _load(name: str, command: str) -> dict[str, Any]:
    path = FOLDER / f"{name}.json"
    if not path.exists():
        raise NotProfiled(f"there is no {path.name} yet; record it: {command}")
    return json.loads(path.read_text(encoding="utf-8"))


@cache
def _hunt() -> Hunt:
    command = "python -m roofline profile hunt --output PATH"
    return Hunt(_load("nvidia-h200-hunt", command))


def hunt() -> Hunt:
    """The hunt as it was recorded on the H200."""
    found = _hunt()
    note(found.source)
    return found


@cache
def points() -> tuple[Point, ...]:
    """The kernels that were profiled on the H200."""
    command = "python -m roofline profile softmax --output PATH"
    data = _load("nvidia-h200-kernels", command)
    return tuple(Point(each) for each in data["points"])


def profiled(id: str, **case: Any) -> Point:
    """The point of benchmark `id` for the case with these sizes."""
    for point in points():
        if point.id == id and case.items() <= {**point.case, "dtype": point.dtype}.items():
            note(point.source)
            return point
    have = ", ".join(sorted({p.id for p in points()}))
    raise NotProfiled(f"no profile of {id!r} with {case}; there are some of {have}")
