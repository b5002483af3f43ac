"""The book notices faults: a sample here, all of them by `make test-all`, which takes hours.

`sample.json` names faults of every page and kind that were noticed when all were last
tried; each is planted again. `report.md` tells of all, `run.py` how to try them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TOUR = "chapters/01_gpu_architecture_tour.md"

#: Faults for pytest itself: what is replaced (its first occurrence), by what, and whether the
#: failure must be at that very line (a fault in a function is noticed where it is called).
FAULTS = {
    "an operator in a tangled function": ("return max(compute, memory)", "return min(compute, memory)", False),
    "a number expression": ('{num}`gpu("H200").bandwidth ->', '{num}`gpu("H100-PCIe").bandwidth ->', True),
    "an untagged Python block": ("```{code-block} python", "```python", True),
}  # fmt: skip


def run(folder: Path, *arguments: str, timeout: float | None = 280) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(folder / "code")
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip


def test_a_sample_of_faults_is_noticed():
    pytest.importorskip("triton")
    pytest.importorskip("jax")
    done = run(ROOT, str(HERE / "run.py"), "--sample")
    assert done.returncode == 0, done.stdout + done.stderr
    planted, gone = map(int, re.search(r"(\d+) planted, \d+ noticed, (\d+) gone", done.stdout).groups())
    # Lines change, and their faults with them; a sample that has faded shows nothing.
    assert planted >= 2 * gone, "choose the sample anew: python tests/mutation/run.py --no-run --report"


@pytest.mark.parametrize("fault", FAULTS)
def test_pytest_itself_turns_red_at_the_line(tmp_path, fault):
    """What the sample's fast prover stands for: the commands that a person types."""
    old, new, here = FAULTS[fault]
    for name in ("chapters", "glossary", "code"):
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "_static")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    path = tmp_path / TOUR
    text = path.read_text("utf-8")
    assert old in text, f"{TOUR} no longer has {old!r}: choose another line to break"
    line = text.count("\n", 0, text.index(old)) + 1
    path.write_text(text.replace(old, new, 1), "utf-8")
    run(tmp_path, "-m", "literate", "tangle")
    done = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", TOUR)
    assert done.returncode == 1, done.stdout
    places = {int(n) for n in re.findall(rf"{re.escape(TOUR)}:(\d+): ", done.stdout)}
    assert places, done.stdout
    if here:
        assert line in places, f"line {line} not among {sorted(places)}"
