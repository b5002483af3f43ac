"""Hardware counters, read by Nsight Compute (ncu) around one call.

The entries of a case run in one process, under ncu: prepared, then each called twice,
so that everything is compiled, and once more between the start and the stop of the
profiler. The counters of all kernels of that call are summed. Clocks and caches are
left alone: what one kernel leaves in the L2 the next may use, as in real life.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
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


def count(
    benchmark: Benchmark, case: Case, entries: Sequence[str]
) -> tuple[str, dict[str, dict[str, float]]]:
    """Read `benchmark.counters` for some entries of a case: the tool, and the counts.

    Raises CountersUnavailable if ncu is not there or may not read counters.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        raise CountersUnavailable("ncu (Nsight Compute) is not installed")
    sums = {name: metrics_of(text) for name, text in benchmark.counters.items()}
    metrics = sorted({metric for parts in sums.values() for metric in parts})
    place = list(benchmark.cases).index(case)
    command = [
        *(ncu, "--clock-control", "none", "--cache-control", "none"),
        *("--profile-from-start", "off", "--csv", "--page", "raw"),
        *("--print-units", "base", "--metrics", ",".join(metrics)),
        *(sys.executable, "-m", __name__, benchmark.id, str(place), *entries),
    ]
    calls = kernels_of_calls(_output(command))
    if len(calls) != len(entries):
        seen = f"ncu saw {len(calls)} calls instead of {len(entries)}"
        raise CountersUnavailable(seen)
    counted = {}
    for entry, kernels in zip(entries, calls, strict=True):
        totals = total(kernels, metrics)
        counted[entry] = {
            name: sum(totals[metric] for metric in parts)
            for name, parts in sums.items()
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
    kernels: Sequence[Mapping[str, str]], metrics: Sequence[str]
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


def _run(id: str, place: int, entries: Sequence[str]) -> None:
    """What runs under ncu: a call of each entry between profiler start and stop."""
    import torch

    from roofline import benchmarks

    benchmark = next(b for b in benchmarks.load() if b.id == id)
    work = benchmark.prepare(benchmark.cases[place], "cuda")
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
    _run(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
