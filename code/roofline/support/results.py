"""Results: what follows from the record's raw facts.

A `Result` is one case of one benchmark with everything that can be derived from its
timings: a throughput, a fraction of the ceiling, ratios to peers, targets met or not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from roofline.support import pending
from roofline.support.bench import describe
from roofline.support.record import Count, Measurement, Record, Run, Timing
from roofline.support.sources import Source, source_of_run
from roofline.support.targets import Target

UNITS = {"bytes": "B/s", "flops": "FLOP/s"}


@dataclass(frozen=True)
class Entry:
    """One of the calls that were timed side by side: ours, a step, or a peer."""

    name: str
    role: str
    seconds: float
    spread: float
    samples: int
    value: float
    fraction: float


@dataclass(frozen=True)
class Judgement:
    """A target with the value it is about; `value` is NaN if it was not measured."""

    target: Target
    value: float

    @property
    def kind(self) -> str:
        return self.target.kind

    @property
    def at_least(self) -> float | None:
        return self.target.at_least

    @property
    def met(self) -> bool:
        return self.target.met_by(self.value)


@dataclass(frozen=True)
class Result:
    """A measured case; numbers of our function unless a name is given."""

    record: Record
    measurement: Measurement

    absent = False

    @property
    def id(self) -> str:
        return self.measurement.id

    @property
    def case(self) -> Mapping[str, Any]:
        return self.measurement.case

    @property
    def dtype(self) -> str:
        return self.measurement.dtype

    @property
    def name(self) -> str:
        """The case in words: 'rows=16384 cols=8192 bf16'."""
        return describe(self.case, self.dtype)

    @property
    def run(self) -> Run:
        return self.record.runs[self.measurement.run]

    @property
    def date(self) -> str:
        return self.run.date

    @property
    def bytes(self) -> int:
        return self.measurement.bytes

    @property
    def flops(self) -> int:
        return self.measurement.flops

    @property
    def intensity(self) -> float:
        """FLOPs per byte that must move."""
        return self.flops / self.bytes if self.bytes else math.inf

    @property
    def unit(self) -> str:
        return UNITS[self.measurement.quantity]

    @property
    def limit(self) -> str | None:
        return self.measurement.limit

    @property
    def limit_value(self) -> float:
        """The ceiling that was measured in the same run, in `unit`; else NaN."""
        ceiling = self.run.ceilings.get(self.limit) if self.limit else None
        return best_value(ceiling) if ceiling else math.nan

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """Every call that was timed, by name, ours first."""
        m = self.measurement
        names = [m.ours, *(name for name in m.timings if name != m.ours)]
        return {name: self._entry(name, m.timings[name]) for name in names}

    def _entry(self, name: str, timing: Timing) -> Entry:
        m = self.measurement
        value = m.work / timing.median
        return Entry(
            name=name,
            role="ours" if name == m.ours else "step" if name in m.steps else "peer",
            seconds=timing.median,
            spread=(timing.p80 - timing.p20) / timing.median,
            samples=timing.n,
            value=value,
            fraction=value / self.limit_value,
        )

    def entry(self, name: str | None = None) -> Entry:
        """The entry of that name; ours if no name is given."""
        name = name or self.measurement.ours
        try:
            return self.entries[name]
        except KeyError:
            reason = self.missing.get(name)
            raise LookupError(
                f"{self.id} {self.name} has no entry {name!r}"
                + (f" ({reason})" if reason else "")
                + f"; it has {', '.join(self.entries)}"
            ) from None

    @property
    def seconds(self) -> float:
        return self.entry().seconds

    @property
    def spread(self) -> float:
        """How far the 20th and the 80th percentile lie apart, over the median."""
        return self.entry().spread

    @property
    def value(self) -> float:
        return self.entry().value

    @property
    def fraction(self) -> float:
        """Our value over the ceiling measured in the same run."""
        return self.entry().fraction

    @property
    def peers(self) -> dict[str, float]:
        return self._values("peer")

    @property
    def steps(self) -> dict[str, float]:
        return self._values("step")

    def _values(self, role: str) -> dict[str, float]:
        return {n: e.value for n, e in self.entries.items() if e.role == role}

    @property
    def missing(self) -> Mapping[str, str]:
        """Peers that could not run, with the reason."""
        return self.measurement.missing

    @property
    def best_peer(self) -> str | None:
        """Name of the fastest peer."""
        peers = self.peers
        return max(peers, key=peers.__getitem__) if peers else None

    def ratio(self, name: str | None = None, *, entry: str | None = None) -> float:
        """How many times faster we are than `name`, by default the best peer.

        `entry` puts one of our steps, or a peer, in our place.
        """
        name = name or self.best_peer
        if name is None:
            raise LookupError(f"{self.id} {self.name} has no peer to compare with")
        return self.entry(name).seconds / self.entry(entry).seconds

    @cached_property
    def targets(self) -> tuple[Judgement, ...]:
        return tuple(
            Judgement(target, self._value_for(target))
            for target in self.measurement.targets
        )

    @property
    def met(self) -> bool:
        """Whether every target of this case is met."""
        return all(judgement.met for judgement in self.targets)

    def _value_for(self, target: Target) -> float:
        kind, _, rest = target.kind.partition(":")
        try:
            if kind == "limit":
                return self.entry(target.entry).fraction
            if kind == "best-peer":
                return self.ratio(entry=target.entry)
            if kind == "peer":
                return self.ratio(rest, entry=target.entry)
            counter, _, other = rest.partition(":")
            key = {**self.case, "dtype": self.dtype}
            counted = find_count(self.record, self.id, key)
            return counted.ratio(counter, other, entry=target.entry)
        except LookupError:
            return math.nan

    @property
    def source(self) -> Source:
        return source_of_run(self.record.device, self.run, self.measurement)

    provenance = source


class AbsentResult:
    """Stands for a result that is still to be measured, as pending.toml says.

    Every number of it is NaN, so that nothing drawn or printed from it can be
    mistaken for a measurement.
    """

    absent = True
    met = False
    unit = "B/s"
    date = "not measured"
    limit = best_peer = None
    targets: tuple[Judgement, ...] = ()
    seconds = spread = value = fraction = limit_value = intensity = math.nan
    bytes = flops = math.nan

    def __init__(self, id: str, case: Mapping[str, Any]) -> None:
        self.id = id
        self.case = {key: size for key, size in case.items() if key != "dtype"}
        self.dtype = str(case.get("dtype", "?"))
        self.name = describe(self.case, self.dtype)
        self.peers = self.steps = self.missing = _Nans()
        self.source = self.provenance = Source("measured", "not measured yet")

    def ratio(self, name: str | None = None, *, entry: str | None = None) -> float:
        return math.nan

    def entry(self, name: str | None = None) -> Entry:
        nan = math.nan
        return Entry(name or "roofline", "ours", nan, nan, 0, nan, nan)


class _Nans(dict[str, float]):
    def __missing__(self, name: str) -> float:
        return math.nan


@dataclass(frozen=True)
class Counted:
    """Hardware counters of one case; of our function unless an entry is named."""

    record: Record
    count: Count

    absent = False

    @property
    def id(self) -> str:
        return self.count.id

    @property
    def case(self) -> Mapping[str, Any]:
        return self.count.case

    @property
    def dtype(self) -> str:
        return self.count.dtype

    @property
    def name(self) -> str:
        return describe(self.case, self.dtype)

    @property
    def tool(self) -> str:
        return self.count.tool

    @property
    def entries(self) -> Mapping[str, Mapping[str, float]]:
        return self.count.entries

    def __getitem__(self, counter: str) -> float:
        return self.value(counter)

    def value(self, counter: str, entry: str | None = None) -> float:
        entry = entry or self.count.ours
        try:
            counters = self.entries[entry]
        except KeyError:
            raise LookupError(
                f"{self.id} {self.name} was not counted for {entry!r}; "
                f"it was for {', '.join(self.entries)}"
            ) from None
        try:
            return counters[counter]
        except KeyError:
            raise LookupError(
                f"{self.id} {self.name} has no counter {counter!r}; "
                f"it has {', '.join(counters)}"
            ) from None

    def ratio(self, counter: str, other: str, *, entry: str | None = None) -> float:
        """Our count over that of the entry `other`."""
        theirs = self.value(counter, other)
        return self.value(counter, entry) / theirs if theirs else math.inf

    @property
    def source(self) -> Source:
        run = self.record.runs[self.count.run]
        return source_of_run(self.record.device, run, self.count)

    provenance = source


class AbsentCount(AbsentResult):
    """Stands for counters that are still to be read, as pending.toml says."""

    tool = "not counted"

    def __getitem__(self, counter: str) -> float:
        return math.nan

    def value(self, counter: str, entry: str | None = None) -> float:  # type: ignore
        return math.nan

    def ratio(self, *names: str, entry: str | None = None) -> float:  # type: ignore
        return math.nan


def best_value(measurement: Measurement) -> float:
    """The value of the fastest entry: what a ceiling's benchmark found possible."""
    fastest = min(timing.median for timing in measurement.timings.values())
    return measurement.work / fastest


def all_results(record: Record, id: str | None = None) -> list[Result]:
    """Every result of the record, or of one benchmark, in the record's order."""
    return [Result(record, m) for m in record.measurements if id is None or m.id == id]


def find_result(record: Record, id: str, case: Mapping[str, Any]) -> Result:
    """The one result of benchmark `id` that agrees with `case`."""
    return Result(record, _only_one(record.measurements, id, case))


def find_count(record: Record, id: str, case: Mapping[str, Any]) -> Counted:
    """The one set of counters of benchmark `id` that agrees with `case`."""
    return Counted(record, _only_one(record.counts, id, case))


class NotMeasured(LookupError):
    """Nothing in the record fits: it has yet to be measured."""


def _only_one(items: Sequence[Any], id: str, case: Mapping[str, Any]) -> Any:
    found = [
        item
        for item in items
        if item.id == id and case.items() <= {**item.case, "dtype": item.dtype}.items()
    ]
    if not found:
        raise _not_found(items, id, case)
    if len(found) > 1:
        listed = "; ".join(describe(item.case, item.dtype) for item in found)
        wanted = _wanted(id, case)
        raise LookupError(f"{wanted} fits {len(found)} results, name one: {listed}")
    return found[0]


def _not_found(items: Sequence[Any], id: str, case: Mapping[str, Any]) -> NotMeasured:
    listed = [describe(item.case, item.dtype) for item in items if item.id == id]
    others = f"; of {id} it holds {'; '.join(listed)}" if listed else ""
    return NotMeasured(f"the record holds no {_wanted(id, case)}{others}")


def _wanted(id: str, case: Mapping[str, Any]) -> str:
    return " ".join([id, *(f"{key}={value}" for key, value in case.items())])


def best_result(record: Record, id: str, case: Mapping[str, Any]) -> Result:
    """The best of a ceiling: its fastest case, with the fastest entry as ours."""
    found = [
        result.measurement
        for result in all_results(record, id)
        if case.items() <= {**result.case, "dtype": result.dtype}.items()
    ]
    if not found:
        raise _not_found(record.measurements, id, case)
    best = max(found, key=best_value)
    fastest = min(best.timings, key=lambda name: best.timings[name].median)
    return Result(record, replace(best, ours=fastest))


def geometric_mean(
    record: Record, id: str, peer: str | None = None, entry: str | None = None
) -> float:
    """Geometric mean of the ratios to `peer` (by default each case's best peer).

    It is a mean over all cases or none: a case without the peer is a LookupError.
    """
    ratios = [result.ratio(peer, entry=entry) for result in all_results(record, id)]
    if not ratios:
        raise NotMeasured(f"the record holds no {id}")
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def judge_overall(record: Record, id: str) -> tuple[Judgement, ...]:
    """The targets on all cases of benchmark `id` together."""
    judgements = []
    for target in record.overall.get(id, ()):
        peer = target.kind.removeprefix("geomean:")
        name = None if peer == "best-peer" else peer.removeprefix("peer:")
        try:
            value = geometric_mean(record, id, name, target.entry)
        except LookupError:
            value = math.nan
        if id in pending.reasons():  # a mean over some of the cases would mislead
            value = math.nan
        judgements.append(Judgement(target, value))
    return tuple(judgements)
