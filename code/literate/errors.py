"""The one way in which this package complains: a place in the book, then a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Problem:
    """Something wrong at one line of the book."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


class BookError(Exception):
    """One or more problems that stop the work."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def shown(path: Path, base: Path) -> str:
    """The path as a person would type it from the book's root."""
    try:
        return path.relative_to(base).as_posix()
    except ValueError:
        return str(path)
