"""Break the book itself: each fault must turn its chapter red, at the chapter's line.

Unlike `test_prove`, which plants faults in a small page, this plants them in a copy of
the real chapters, tangles the copy, and so asks whether the *prose's own checks* notice.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

TOUR = "chapters/01_gpu_architecture_tour.md"
SOFTMAX = "chapters/02_triton_101_softmax.md"

#: A chapter, what is replaced (its first occurrence), by what, and whether the failure must
#: be at that very line (it is elsewhere where a later check is what notices).
FAULTS = {
    "an operator in a tangled function": (
        TOUR, "return max(compute, memory)", "return min(compute, memory)", False,
    ),
    "a constant in a tangled count": (
        TOUR, "Count(flops=2 * m * n * k", "Count(flops=3 * m * n * k", False,
    ),
    "a comparison in chapter code": (
        TOUR, "assert math.isclose(flops / seconds, rate)",
        "assert not math.isclose(flops / seconds, rate)", True,
    ),
    "a kernel's fill value": (SOFTMAX, 'other=float("-inf")', "other=0.0", False),
    "a fragment's name": (SOFTMAX, "<<load the tile>>", "<<load a tile>>", True),
    "a number expression": (TOUR, '{num}`gpu("H200").bandwidth', '{num}`gpu("H200").bandwith', True),
    "a missing measurement": (SOFTMAX, '{num}`measured("softmax", cols=8192)', '{num}`measured("softmax", cols=8191)', True),
    "an untagged Python block": (SOFTMAX, "```{code-block} python", "```python", True),
}  # fmt: skip


@pytest.fixture
def copy(tmp_path):
    """The book without its tests, in a folder of its own."""
    for name in ("chapters", "glossary", "code"):
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "_static")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def run(folder, *arguments: str) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(folder / "code")
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_chapter_turns_its_tests_red(copy, fault):
    chapter, old, new, here = FAULTS[fault]
    path = copy / chapter
    text = path.read_text("utf-8")
    assert old in text, f"{chapter} no longer has {old!r}: choose another line to break"
    line = text.count("\n", 0, text.index(old)) + 1
    path.write_text(text.replace(old, new, 1), "utf-8")
    run(copy, "literate", "tangle")
    done = run(copy, "pytest", "-q", "-p", "no:cacheprovider", chapter)
    assert done.returncode == 1, done.stdout
    places = {int(n) for n in re.findall(rf"{re.escape(chapter)}:(\d+): ", done.stdout)}
    assert places, done.stdout
    if here:
        assert line in places, f"line {line} not among {sorted(places)}"
