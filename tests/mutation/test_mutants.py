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
sys.path.insert(0, str(HERE))
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


def page(kinds: dict, survivors=(), idle=(), **more) -> dict:
    return {"kinds": kinds, "lines that do not run": dict(idle), "caught by another page": 0,
            "survivors": list(survivors), **more}  # fmt: skip


def survivor(line: str, verdict: str, runs: bool = True) -> dict:
    return {"place": "a.md:1", "kind": "constant", "function": "f", "old": "1", "new": "2", "line": line,
            "runs": runs, "verdict": verdict, "reason": "", "tests": ""}  # fmt: skip


def test_a_report_is_brought_up_to_date_without_losing_what_was_not_tried():
    """A large sample of code stays when fewer faults were tried; what became of its survivors counts."""
    import report

    asleep = {"constant": {"possible": 1, "tried": 1, "missed": 1}}
    then = page(
        {"constant": {"possible": 9, "tried": 5, "caught": 2, "missed": 3}, "number: text": {"possible": 2, "tried": 2, "caught": 2}},
        [survivor("seen now", "missed"), survivor("judged now", "missed"), survivor("missed", "missed"), survivor("awake", "missed", False)],
        asleep,
    )  # fmt: skip
    new = page(
        {"constant": {"possible": 9, "tried": 3, "caught": 2, "equivalent": 1}},
        [survivor("judged now", "equivalent")],
        noticed=[("constant", "f", "1", "2", "seen now"), ("constant", "f", "1", "2", "awake")],
        dates={"code": "2", "idle": "2"},
    )
    before = {"date": "1", "pages": {"a.md": then, "b.md": page(asleep)}}
    found = report.merged({"date": "2", "pages": {"a.md": new}}, before)["pages"]
    row = {k: v for k, v in found["a.md"]["kinds"]["constant"].items() if v}
    assert row == {"possible": 10, "tried": 6, "caught": 4, "missed": 1, "equivalent": 1}
    assert {s["line"]: s["verdict"] for s in found["a.md"]["survivors"]} == {"judged now": "equivalent", "missed": "missed"}
    assert found["a.md"]["lines that do not run"] == {} and found["a.md"]["kinds"]["number: text"]["caught"] == 2
    assert found["a.md"]["dates"] == {"code": "1", "numbers": "1"}
    assert found["b.md"]["kinds"] == asleep and found["b.md"]["dates"] == {"code": "1"}
    # With more tried than then, the new sample is the one that counts.
    new["kinds"]["constant"]["tried"] = 7
    found = report.merged({"date": "2", "pages": {"a.md": new}}, before)["pages"]["a.md"]
    assert found["kinds"]["constant"] == new["kinds"]["constant"] and found["dates"]["code"] == "2"
