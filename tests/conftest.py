"""Small books to test the harness on, and what this machine must be able to show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parent.parent


class SmallBook:
    """A book in a temporary folder that has nothing to do with GPUs."""

    def __init__(self, base: Path):
        self.base = base
        self.write("pyproject.toml", '[tool.literate]\nroot = "code"\n')
        (base / "code").mkdir()

    def write(self, name: str, text: str) -> Path:
        path = self.base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
        return path

    def page(self, text: str, name: str = "a.md") -> Path:
        return self.write(f"chapters/{name}", text)

    def book(self):
        from literate.book import Book
        from literate.config import load

        return Book(load(self.base))

    def run(self, *arguments: str) -> subprocess.CompletedProcess:
        """Run a Python module (`literate …`, `pytest …`) in the book's folder."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        environment["PYTHONPATH"] = str(ROOT / "code")
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=self.base, env=environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    def prove(self, *arguments: str) -> subprocess.CompletedProcess:
        return self.run("pytest", "-p", "no:cacheprovider", "-ra", "-v", *arguments)


@pytest.fixture
def small(tmp_path) -> SmallBook:
    return SmallBook(tmp_path)


def require(feature: str, present: bool, reason: str) -> None:
    """Skip for want of a feature, or fail where this machine was told to have it."""
    if present:
        return
    if feature in os.environ.get("BOOK_REQUIRE", "").split(","):
        pytest.fail(f"{reason}, but BOOK_REQUIRE asks for {feature!r}")
    pytest.skip(reason)
