"""Dead links and missing terms: planted all at once, for one strict build to find.

Each leads to a name of its own that exists nowhere, and Sphinx warns of each by that name;
so one build tells of hundreds of faults which of them `make html` would have refused.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = "links.json"


def outcomes(kept: Path) -> dict:
    file = kept / FILE
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}


def plant(book) -> tuple[dict[str, str], dict[str, tuple]]:
    """Every page with all its links dead; and each fault by the name that it leads to."""
    import mutants as m

    texts, planted = {}, {}
    for page in book.pages:
        lines = page.source.split("\n")
        # From the end of a line, so that columns stay what they were.
        for mutant in sorted(m.in_links(page), key=lambda x: (x.line, -x.start)):
            mark = f"gone{len(planted)}q"
            planted[mark] = (page.path, mutant.kind, mutant.old, mutant.line)
            text = lines[mutant.line - 1]
            new = re.sub(r"gone\b", mark, mutant.new)
            lines[mutant.line - 1] = text[: mutant.start] + new + text[mutant.end :]
        texts[page.path] = "\n".join(lines)
    return texts, planted


def build(texts: dict[str, str]) -> str:
    """Weave a copy of the book with these pages; returns what Sphinx complained of."""
    with tempfile.TemporaryDirectory(prefix="book-links-") as folder:
        to = Path(folder) / "book"
        shutil.copytree(
            ROOT, to, ignore=shutil.ignore_patterns(".*", "_build", "__pycache__", "tests"), symlinks=True
        )
        for path, text in texts.items():
            (to / path).write_text(text, "utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "sphinx", "-q", "--nitpicky", "--fail-on-warning", "--keep-going",
             "-b", "dirhtml", ".", "_build/links"],
            cwd=to, env={**os.environ, "PYTHONPATH": str(to / "code"), "NO_COLOR": "1"}, capture_output=True, text=True,
        )  # fmt: skip
        return done.stderr


def run(book, kept: Path) -> None:
    texts, planted = plant(book)
    said = build(texts)
    found: dict[str, dict] = {}
    for mark, (path, kind, old, line) in planted.items():
        row = found.setdefault(path, {}).setdefault(
            kind, {"possible": 0, "tried": 0, "caught": 0, "missed": 0, "survivors": []}
        )
        caught = mark in said
        row["possible"] += 1
        row["tried"] += 1
        row["caught" if caught else "missed"] += 1
        if not caught:
            row["survivors"].append([old, line])
    kept.mkdir(parents=True, exist_ok=True)
    (kept / FILE).write_text(json.dumps(found, indent=1), "utf-8")
