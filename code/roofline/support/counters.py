"""Hardware counters, read by Nsight Compute (ncu) around one call.

All entries run in one process, under ncu: each is called twice, so that everything is
compiled, and once more between the start and the stop of the profiler. The counters of all kernels of that call are summed. Clocks and caches are
left alone: what one kernel leaves in the L2 the next may use, as in real life.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from roofline.support.bench import Benchmark, Case

TIMEOUT = 180.0
#: Part of the name of the kernel that ends an entry's: PyTorch's, which only waits.
MARK = "spin_kernel"
_METRIC = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")


class CountersUnavailable(Exception):
    """Counters cannot be read here; says why."""


def metrics_of(expression: str) -> list[str]:
    """The metrics of a sum: 'dram__bytes_read.sum + dram__bytes_write.sum'."""
    metrics = [part.strip() for part in expression.split("+")]
    for metric in metrics:
        if not _METRIC.fullmatch(metric):
            raise ValueError(f"a counter must be a sum of ncu metrics, got {metric!r}")
    return metrics


#: What to count: a benchmark, one of its cases, and the names of entries.
Job = tuple[Benchmark, Case, Sequence[str]]


def count(
    benchmark: Benchmark, case: Case, entries: Sequence[str]
) -> tuple[str, dict[str, dict[str, float]]]:
    """Read `benchmark.counters` for some entries of a case: the tool, and the counts.

    Raises CountersUnavailable if ncu is not there or may not read counters.
    """
    tool, (counted,) = count_all([(benchmark, case, entries)])
    return tool, counted


def count_all(jobs: Sequence[Job]) -> tuple[str, list[dict[str, dict[str, float]]]]:
    """What `count` gives, for several cases in one run of ncu: most of it is start-up."""
    ncu = shutil.which("ncu")
    if ncu is None:
        raise CountersUnavailable("ncu (Nsight Compute) is not installed")
    sums = [{n: metrics_of(t) for n, t in job[0].counters.items()} for job in jobs]
    metrics = sorted({m for each in sums for parts in each.values() for m in parts})
    asked = [
        (benchmark.id, list(benchmark.cases).index(case), list(entries))
        for benchmark, case, entries in jobs
    ]
    command = [
        *(ncu, "--clock-control", "none", "--cache-control", "none"),
        *("--profile-from-start", "off", "--csv", "--page", "raw"),
        *("--print-units", "base", "--metrics", ",".join(metrics)),
        *(sys.executable, "-m", __name__, json.dumps(asked)),
    ]
    calls = kernels_of_calls(_output(command))
    wanted = sum(len(entries) for _, _, entries in jobs)
    if len(calls) != wanted:
        raise CountersUnavailable(f"ncu saw {len(calls)} calls instead of {wanted}")
    left = iter(calls)
    counted = []
    for (_, _, entries), each in zip(jobs, sums, strict=True):
        counted.append({})
        for entry in entries:
            totals = total(next(left), {m for parts in each.values() for m in parts})
            counted[-1][entry] = {
                name: sum(totals[metric] for metric in parts)
                for name, parts in each.items()
            }
    return f"ncu {_version(ncu)}".strip(), counted


def _output(command: list[str]) -> str:
    source_root = str(Path(__file__).parents[2])
    paths = [source_root, os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, env=environment
        )
    except subprocess.TimeoutExpired:
        raise CountersUnavailable(f"ncu took more than {TIMEOUT:g} s") from None
    if done.returncode:
        lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
        said = [line for line in lines if "==ERROR==" in line or "Error" in line]
        last = (said or lines or ["no output"])[-1]
        raise CountersUnavailable(
            f"ncu: {last.removeprefix('==ERROR==').strip()[:200]}"
        )
    return done.stdout


def _version(ncu: str) -> str:
    try:
        text = subprocess.run(
            [ncu, "--version"], capture_output=True, text=True, timeout=30
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"Version (\d+\.\d+\.\d+)", text)
    return found[1] if found else ""


def kernels_of_calls(output: str) -> list[list[Mapping[str, str]]]:
    """The kernels of each call in ncu's raw CSV page; a marking kernel ends a call."""
    lines = output.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise CountersUnavailable("ncu saw no kernel in the call")
    calls, kernels = [], []
    for row in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        if not row["ID"]:  # the row of units
            continue
        if MARK in row["Kernel Name"]:
            calls.append(kernels)
            kernels = []
        else:
            kernels.append(row)
    return calls


def total(
    kernels: Sequence[Mapping[str, str]], metrics: Iterable[str]
) -> Mapping[str, float]:
    """Sum each metric over the kernels of a call."""
    if not kernels:
        raise CountersUnavailable("ncu saw no kernel in the call")
    totals = {}
    for metric in metrics:
        try:
            totals[metric] = sum(float(row[metric].replace(",", "")) for row in kernels)
        except (KeyError, ValueError):
            raise CountersUnavailable(f"ncu gave no number for {metric}") from None
    return totals


def _run(jobs: Sequence[tuple[str, int, Sequence[str]]]) -> None:
    """What runs under ncu: a call of each entry between profiler start and stop."""
    import torch

    from roofline import benchmarks

    known = {benchmark.id: benchmark for benchmark in benchmarks.load()}
    for id, place, entries in jobs:
        work = known[id].prepare(known[id].cases[place], "cuda")
        for entry in entries:
            call = work.run[entry]
            call()
            call()
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStart()
            call()
            torch.cuda._sleep(1)  # launches the marking kernel
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStop()


if __name__ == "__main__":
    _run(json.loads(sys.argv[1]))
