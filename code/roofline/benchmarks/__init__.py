"""The benchmarks of the chapters; each module here is tangled from one chapter."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from roofline.support.bench import Benchmark

_TANGLED_FROM = re.compile(r"chapters/(\S+?)\.md")


def modules() -> list[str]:
    """Names of the modules here, in the order of the chapters they come from."""
    files = [f for f in Path(__file__).parent.glob("*.py") if f.stem != "__init__"]
    return [file.stem for file in sorted(files, key=_chapter)]


def _chapter(file: Path) -> tuple[str, str]:
    head = "".join(file.read_text(encoding="utf-8").splitlines(keepends=True)[:5])
    found = _TANGLED_FROM.search(head)
    return (found[1] if found else "~", file.stem)  # "~" sorts after all digits


def load() -> list[Benchmark]:
    """Every benchmark, in the order of the chapters. Imports torch and Triton."""
    benchmarks: dict[str, Benchmark] = {}
    for name in modules():
        module = importlib.import_module(f"{__name__}.{name}")
        for benchmark in module.BENCHMARKS:
            if benchmark.id in benchmarks:
                raise ValueError(f"two benchmarks are called {benchmark.id!r}")
            benchmarks[benchmark.id] = benchmark
    return list(benchmarks.values())
