"""Runs benchmarks: prepares each case, checks its outputs, times its entries together.

A peer that fails is left out and its reason recorded. When our own function fails,
that case has no result and the run goes on; the failures are listed at the end.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from roofline.support import counters
from roofline.support.bench import Benchmark, Case, PeerUnavailable, Work, describe
from roofline.support.environment import device_here, versions
from roofline.support.record import Count, Measurement, Record, Run, Timing
from roofline.support.results import best_value

#: Seconds to spend on timing one entry of one case.
BUDGET = 0.3
QUICK_BUDGET = 0.02


@dataclass(frozen=True)
class Failure:
    """A case without a result, and why; `ours` if it was our function that failed."""

    id: str
    case: Case
    reason: str
    ours: bool = True

    def __str__(self) -> str:
        return f"{self.id} {self.case}: {self.reason}"


@dataclass(frozen=True)
class Step:
    """How far a run has come, for whoever watches it."""

    done: int
    total: int
    id: str
    case: Case


@dataclass
class Outcome:
    """A record of what was measured so far, and what failed."""

    record: Record
    failures: list[Failure] = field(default_factory=list)


def plan(benchmarks: Sequence[Benchmark], only: Sequence[str]) -> list[Benchmark]:
    """The benchmarks to run, each after the ceiling it is held against.

    `only` picks some by id; the ceilings they need come along. Raises ValueError for
    an id or a ceiling that does not exist.
    """
    by_id = {benchmark.id: benchmark for benchmark in benchmarks}
    for id in only:
        if id not in by_id:
            raise ValueError(
                f"no benchmark is called {id!r}; there are {', '.join(by_id)}"
            )
    chosen = [b for b in benchmarks if not only or b.id in only]
    planned: dict[str, Benchmark] = {}
    for benchmark in chosen:
        for case in benchmark.cases:
            limit = benchmark.limit_of(case)
            if limit is not None and limit not in by_id:
                raise ValueError(f"{benchmark.id!r} has an unknown limit {limit!r}")
            if limit is not None:
                planned.setdefault(limit, by_id[limit])
        planned.setdefault(benchmark.id, benchmark)
    return list(planned.values())


def measure(
    benchmarks: Sequence[Benchmark],
    *,
    only: Sequence[str] = (),
    quick: bool = False,
    count: bool = True,
    command: str = "python -m roofline measure",
    budget: float | None = None,
    watch: Callable[[Step], object] = lambda step: None,
) -> Iterator[Outcome]:
    """Measure, and give the outcome so far after each benchmark.

    On a CPU every case runs at its small sizes, as it does with `quick`. The outcome
    is one object that grows; what it holds is complete for the benchmarks it names,
    but for the hardware counters, which are read all together at the end.
    """
    kind, device, driver = device_here()
    quick = quick or kind == "cpu"
    budget = budget or (QUICK_BUDGET if quick else BUDGET)
    now = datetime.now(UTC)
    run = Run(
        id=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        date=now.strftime("%Y-%m-%d"),
        command=command,
        driver=driver,
        versions=versions(),
        quick=quick,
    )
    planned = plan(benchmarks, only)
    cases = {b.id: small_cases(b) if quick else list(b.cases) for b in planned}
    total = sum(map(len, cases.values()))
    outcome = Outcome(Record(device, {run.id: run}))
    ceilings: dict[str, Measurement] = {}
    finished: list[str] = []
    to_count: list[tuple[Benchmark, Case, Measurement]] = []
    done = 0
    for benchmark in planned:
        measurements = []
        for case in cases[benchmark.id]:
            watch(Step(done, total, benchmark.id, case))
            done += 1
            try:
                measurement = measure_case(benchmark, case, kind, run.id, budget)
            except PeerUnavailable as reason:
                failure = Failure(benchmark.id, case, str(reason), ours=False)
                outcome.failures.append(failure)
                continue
            except CaseFailed as error:
                outcome.failures.append(Failure(benchmark.id, case, str(error)))
                continue
            if measurement.limit is not None and measurement.limit not in ceilings:
                measurement = replace(measurement, limit=None)
            measurements.append(measurement)
        if measurements:
            ceilings[benchmark.id] = max(measurements, key=best_value)
        finished.append(benchmark.id)
        asked = not only or benchmark.id in only
        if asked and count and kind == "cuda":
            to_count += _counted_cases(benchmark, cases[benchmark.id], measurements)
        before = outcome.record
        limits = {m.limit for m in (*before.measurements, *measurements)}
        all_done = not only and len(finished) == len(planned)
        run = replace(
            run,
            only=()
            if all_done
            else tuple(i for i in finished if not only or i in only),
            ceilings={id: m for id, m in ceilings.items() if id in limits},
        )
        outcome.record = replace(
            before,
            runs={run.id: run},
            measurements=before.measurements + (tuple(measurements) if asked else ()),
            overall={
                **before.overall,
                **(
                    {benchmark.id: benchmark.targets}
                    if asked and benchmark.targets
                    else {}
                ),
            },
        )
        yield outcome
    if to_count:
        _count(outcome, to_count)
        yield outcome


def small_cases(benchmark: Benchmark) -> list[Case]:
    """The cases at their sizes for a CPU; those that become the same count once."""
    small = {str(case.small()): case.small() for case in benchmark.cases}
    return list(small.values())


class CaseFailed(Exception):
    """Our own function could not be measured."""


def measure_case(
    benchmark: Benchmark, case: Case, device: str, run: str, budget: float
) -> Measurement:
    """Prepare, check and time one case. Raises PeerUnavailable or CaseFailed."""
    with _fresh_memory(device):
        work = _prepare(benchmark, case, device)
        calls, missing = _working_calls(work)
        timings = _time(calls, device, budget, missing)
        ours = next(iter(work.run))
        if ours not in timings:
            raise CaseFailed(missing[ours])
        return Measurement(
            id=benchmark.id,
            case=dict(case.sizes),
            dtype=case.dtype,
            run=run,
            quantity=benchmark.quantity,
            bytes=int(work.bytes),
            flops=int(work.flops),
            limit=benchmark.limit_of(case),
            ours=ours,
            steps=tuple(name for name in benchmark.steps if name in timings),
            timings=timings,
            missing=missing,
            targets=case.targets,
        )


def _prepare(benchmark: Benchmark, case: Case, device: str) -> Work:
    try:
        return benchmark.prepare(case, device)
    except PeerUnavailable:
        raise
    except Exception as error:
        raise CaseFailed(f"prepare: {reason_of(error)}") from error


def _working_calls(
    work: Work,
) -> tuple[dict[str, Callable[[], object]], dict[str, str]]:
    """Run and check each entry once; the calls that work, and why others do not."""
    calls, missing = {}, dict(work.missing)
    for place, (name, call) in enumerate(work.run.items()):
        try:
            output = call()
            if work.check is not None:
                work.check(name, output)
            calls[name] = call
        except Exception as error:
            if place == 0:
                raise CaseFailed(reason_of(error)) from error
            missing[name] = reason_of(error)
        finally:
            output = None
    return calls, missing


class _EntryFailed(Exception):
    def __init__(self, name: str, error: Exception) -> None:
        self.name, self.error = name, error


def _time(
    calls: Mapping[str, Callable[[], object]],
    device: str,
    budget: float,
    missing: dict[str, str],
) -> dict[str, Timing]:
    """Time the calls together; whichever fails now goes to `missing`."""
    from roofline.microbench import time_together

    def named(name: str, call: Callable[[], object]) -> Callable[[], object]:
        def run() -> object:
            try:
                return call()
            except Exception as error:
                raise _EntryFailed(name, error) from error

        return run

    left = {name: named(name, call) for name, call in calls.items()}
    # Ten samples of what takes longer than 30 ms are as good as many of less.
    rounds = (3, 50) if device == "cpu" else (10, 400)
    while left:
        try:
            timed = time_together(left, device=device, budget=budget, rounds=rounds)
        except _EntryFailed as failed:
            missing[failed.name] = reason_of(failed.error)
            del left[failed.name]
        except Exception as error:
            raise CaseFailed(f"while timing: {reason_of(error)}") from error
        else:
            return {n: Timing(t.median, t.p20, t.p80, t.n) for n, t in timed.items()}
    return {}


def _counted_cases(
    benchmark: Benchmark, cases: Sequence[Case], measurements: Sequence[Measurement]
) -> list[tuple[Benchmark, Case, Measurement]]:
    """The cases to read counters for that have been measured."""
    by_case = {(describe(m.case, m.dtype)): m for m in measurements}
    return [
        (benchmark, case, by_case[str(case)])
        for case in cases
        if case.count and str(case) in by_case
    ]


def _count(
    outcome: Outcome, to_count: Sequence[tuple[Benchmark, Case, Measurement]]
) -> None:
    """Read the counters of all cases, and put them into the outcome's record."""
    jobs = []
    for benchmark, case, measurement in to_count:
        names = list(measurement.timings)
        if isinstance(case.count, tuple):
            ours = measurement.ours
            names = [ours, *(n for n in case.count if n != ours)]
        jobs.append((benchmark, case, names))
    try:
        tool, counted = counters.count_all(jobs)
    except counters.CountersUnavailable as reason:
        for benchmark, case, _ in to_count:
            text = f"not counted: {reason}"
            outcome.failures.append(Failure(benchmark.id, case, text, ours=False))
        return
    counts = tuple(
        Count(
            id=benchmark.id,
            case=measurement.case,
            dtype=case.dtype,
            run=measurement.run,
            tool=tool,
            ours=measurement.ours,
            entries=entries,
        )
        for (benchmark, case, measurement), entries in zip(to_count, counted, strict=True)
    )
    outcome.record = replace(outcome.record, counts=counts)


def reason_of(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, PeerUnavailable):
        return text or "unavailable"
    if isinstance(error, AssertionError):
        return f"wrong result: {text}" if text else "wrong result"
    if type(error).__name__ == "OutOfMemoryError":
        return "out of memory"
    if isinstance(error, ImportError) and error.name:
        return f"{error.name} is not installed"
    return f"{type(error).__name__}: {text}"[:300]


@contextmanager
def _fresh_memory(device: str) -> Iterator[None]:
    """Give back all device memory that the body leaves unreferenced."""
    try:
        yield
    finally:
        gc.collect()
        if device == "cuda":
            import torch

            torch.cuda.empty_cache()
