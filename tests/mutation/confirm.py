"""Whether tests/ notice what the chapters do not: for survivors that judged.toml says so of."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mutants import planted

ROOT = Path(__file__).resolve().parents[2]
FILE = "confirmed.json"


def outcomes(kept: Path) -> dict[str, str]:
    file = kept / FILE
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}


def run(book, survivors, kept: Path, seconds: float | None) -> None:
    """survivors: (key, mutant, the tests to ask), in the order to take them."""
    from literate.book import Book

    end = time.monotonic() + seconds if seconds else None
    found = outcomes(kept)
    with tempfile.TemporaryDirectory(prefix="book-tests-") as folder:
        tree = Path(folder) / "book"
        ignored = shutil.ignore_patterns(".git", ".venv", ".lab", ".whl", "_build", "__pycache__")
        shutil.copytree(ROOT, tree, ignore=ignored, symlinks=True)
        for key, mutant, tests in survivors:
            if key in found or end and time.monotonic() > end:
                continue
            changed = planted(book.page(mutant.page), mutant)
            pages = [changed if p.path == changed.path else p for p in book.pages]
            file = tree / book.config.root / mutant.target
            before = file.read_text("utf-8")
            file.write_text(Book(book.config, pages).files[mutant.target].text, "utf-8")
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests.split()],
                cwd=tree, env={**os.environ, "PYTHONPATH": str(tree / "code")}, capture_output=True, text=True,
            )  # fmt: skip
            file.write_text(before, "utf-8")
            found[key] = f"{'noticed' if done.returncode == 1 else 'not noticed'} by {tests}"
            (kept / FILE).write_text(json.dumps(found, indent=1), "utf-8")
