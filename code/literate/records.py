"""What the reader finds: frozen records of a page, its blocks and its expressions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import Problem


@dataclass(frozen=True)
class Block:
    """One code block, as the page shows it."""

    path: str
    language: str
    text: str
    options: Mapping[str, Any]
    #: 1-based lines of the page: opening fence, first line of code, closing fence.
    line: int
    code_line: int
    end_line: int

    @property
    def name(self) -> str | None:
        return self.options.get("name")

    @property
    def tangle(self) -> str | None:
        return self.options.get("tangle")

    @property
    def fragment(self) -> str | None:
        return self.options.get("fragment")

    @property
    def is_output(self) -> bool:
        return "output" in self.options

    @property
    def runs(self) -> bool:
        """Python that is to be executed in the page's own namespace."""
        return (
            self.language == "python"
            and not self.tangle
            and not self.fragment
            and "display-only" not in self.options
        )

    @property
    def lines(self) -> list[str]:
        return self.text.split("\n") if self.text else []

    def problem(self, message: str, offset: int | None = None) -> Problem:
        """A problem at the opening fence, or at the code's line number `offset` (from 0)."""
        line = self.line if offset is None else self.code_line + offset
        return Problem(self.path, line, message)


@dataclass(frozen=True)
class Expression:
    """One `{num}` role: something computed, and how to print it."""

    path: str
    line: int
    column: int
    text: str


@dataclass(frozen=True)
class Page:
    """One page of the book."""

    file: Path
    path: str
    source: str
    meta: Mapping[str, Any]
    blocks: tuple[Block, ...]
    expressions: tuple[Expression, ...]
    problems: tuple[Problem, ...]
