"""A benchmark before it has a GPU: run small on a CPU, and held against the record.

What a chapter measures is code too, and most of it would first run on the machine that is
paid by the hour. `rehearse` runs every entry at the sizes that a CPU can carry, through
the benchmark's own check, and asks at full size, without any memory (PyTorch's `meta`
device), for the bytes and FLOPs that each result of the record was divided by.
"""

from __future__ import annotations

from collections.abc import Iterable

from roofline.support import pending
from roofline.support.bench import Benchmark, Case
from roofline.support.numbers import load_record
from roofline.support.record import Measurement


def rehearse(
    benchmarks: Iterable[Benchmark],
    *, skip: Iterable[str] = ("compile",), uncounted: Iterable[str] = (),
) -> dict[str, list[str]]:
    """Run all entries small, and compare all cases with the record; returns what ran.

    skip        entries whose names hold one of these words are not run
    uncounted   benchmarks that can only be prepared on a real device
    """
    skip, uncounted = tuple(skip), frozenset(uncounted)
    held = {
        (m.id, tuple(m.case.items()), m.dtype): m for m in load_record().measurements
    }
    ran: dict[str, list[str]] = {}
    for benchmark in benchmarks:
        small = {str(case.small()): case.small() for case in benchmark.cases}
        ran[benchmark.id] = []
        for case in small.values():
            ran[benchmark.id] += _run(benchmark, case, skip)
        for case in benchmark.cases:
            measured = held.get((benchmark.id, tuple(case.sizes.items()), case.dtype))
            if benchmark.id in pending.reasons():
                continue  # of another version, or not there yet
            if measured is None:
                raise AssertionError(f"the record holds no {benchmark.id} {case}")
            _compare(benchmark, case, measured, benchmark.id not in uncounted)
    return ran


def _run(benchmark: Benchmark, case: Case, skip: tuple[str, ...]) -> list[str]:
    work = benchmark.prepare(case, "cpu")
    names = [name for name in work.run if not any(word in name for word in skip)]
    for name in names:
        output = work.run[name]()
        if work.check is not None:
            work.check(name, output)
    return names


def _compare(
    benchmark: Benchmark, case: Case, measured: Measurement, counted: bool
) -> None:
    ours = (benchmark.quantity, benchmark.limit_of(case), case.targets)
    theirs = (measured.quantity, measured.limit, measured.targets)
    if counted:
        work = benchmark.prepare(case, "meta")
        ours = (*ours, work.bytes, work.flops)
        theirs = (*theirs, measured.bytes, measured.flops)
    if ours != theirs:
        raise AssertionError(f"{benchmark.id} {case} is {ours}; the record has {theirs}")
