"""How the harness grows with the book: `python tests/scale/benchmark.py [--entangled COMMAND]`.

Books of 100 and 1,000 chapters of ten blocks, each command in a process of its own, from
outside. Against Entangled (`pip install entangled-cli` somewhere; the same content in its
own syntax) runs alternate, so that a machine whose speed drifts drifts for both. Writes
`results.json` and the table of `README.md` beside this file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import generated  # noqa: E402

RESULTS = HERE / "results.json"
LITERATE = [sys.executable, "-m", "literate", "tangle"]
COLLECT = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", "chapters"]


def timed(command: list[str], folder: Path) -> float:
    """Seconds that a command takes, from outside."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(ROOT / "code")
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return seconds


def clean(book: Path, *names: str) -> None:
    for name in names:
        shutil.rmtree(book / name, ignore_errors=True)


def whole(book: Path) -> float:
    clean(book, "code/book", "_build")
    return timed(LITERATE, book)


def one_chapter(book: Path, turn: int) -> float:
    page = book / "chapters/c0007.md"
    page.write_text(page.read_text("utf-8").replace("Chapter 7", f"Chapter 7, {turn}:", 1), "utf-8")
    return timed(LITERATE, book)


def measure(runs: int, entangled: str | None) -> dict:
    found: dict = {"date": datetime.date.today().isoformat(), "python": platform.python_version(),
                   "processors": len(os.sched_getaffinity(0)), "blocks": generated.BLOCKS,
                   "myst-parser": version("myst-parser"), "runs": runs}  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        for size in (100, 1000):
            book = generated.literate(base / f"literate{size}", size)
            found[f"tangle {size}"] = [whole(book) for _ in range(runs)]
            found[f"one chapter of {size}"] = [one_chapter(book, turn) for turn in range(runs)]
            found["MB"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            pages = generated.runnable(base / f"run{size}", size)
            found[f"collect {size}"] = [timed(COLLECT, pages) for _ in range(min(runs, 3))]
        if entangled:
            theirs = generated.entangled(base / "entangled", 1000)
            pairs = []
            for _ in range(runs):
                ours = whole(book)
                clean(theirs, "code", ".entangled")
                pairs.append([ours, timed([*entangled.split(), "tangle"], theirs)])
            found["pairs with Entangled"] = pairs
            said = subprocess.run([*entangled.split(), "--version"], capture_output=True, text=True)
            found["Entangled"] = said.stdout.strip().removeprefix("Entangled ")
    return found


def table(found: dict) -> str:
    """The results in words; README.md holds exactly this below its first lines."""
    middle = {k: statistics.median(v) for k, v in found.items() if isinstance(v, list) and k[0] != "p"}
    pairs = found.get("pairs with Entangled", [])
    ratio = statistics.median(a / b for a, b in pairs) if pairs else None
    rows = [
        ("tangle 1,000 chapters, nothing remembered", f"{middle['tangle 1000']:.2f} s", ""),
        ("a tangle after one of 1,000 chapters changed", f"{middle['one chapter of 1000']:.2f} s", "at most 1 s"),
        ("1,000 chapters against 100: tangle", f"{middle['tangle 1000'] / middle['tangle 100']:.1f} ×", "at most 10 ×"),
        ("1,000 chapters against 100: collect tests", f"{middle['collect 1000'] / middle['collect 100']:.1f} ×", "at most 10 ×"),
        ("peak memory of the largest process", f"{found['MB']:.0f} MB", "at most 500 MB"),
    ]
    if ratio is not None:
        rows.append((f"against Entangled {found['Entangled']}, 1,000 chapters, in pairs", f"{ratio:.2f} ×", "at most 0.7 ×"))
    lines = ["| what | median | aim |", "| --- | --- | --- |", *(f"| {a} | {b} | {c} |" for a, b, c in rows)]
    how = (f"{found['date']}, {found['processors']} processors that other work shared, Python {found['python']}, "
           f"myst-parser {found['myst-parser']}; {found['runs']} runs, {found['blocks']} blocks a chapter.")  # fmt: skip
    return "\n".join(lines) + f"\n\n{how}\n"


def readme(found: dict) -> str:
    return ("# The harness on a large book\n\nMade by `python tests/scale/benchmark.py`, from `results.json`.\n\n"
            + table(found))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--entangled", metavar="COMMAND", help="how to start Entangled")
    options = parser.parse_args()
    found = measure(options.runs, options.entangled)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    (HERE / "README.md").write_text(readme(found), "utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
