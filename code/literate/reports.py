"""Reports of proof: what a run of the tests found of each block, kept with the book.

`pytest chapters --literate-report FILE` writes one, or brings an existing one up to
date. The book's settings name the reports that its pages show:

    reports = ["CPU: code/data/cpu.json", "Big machine: code/data/big.json"]

Each entry remembers the block's text by its hash, fragments included. A page never
shows a result of a text that has changed since.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .book import Book, references
from .conditions import found_here
from .config import Config
from .records import Block
from .writing import alone
from .writing import write as replace

PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"


@dataclass(frozen=True)
class Status:
    """What one report says of a block: an outcome, or `changed` or `unknown`."""

    label: str
    outcome: str
    date: str = ""
    reason: str = ""


def digest(book: Book, block: Block) -> str:
    """A hash of the block's text, with the fragments that it pulls in."""
    page = book.page(block.path)
    fragments = book.fragments(page)
    texts, waiting, seen = [], [block], set()
    while waiting:
        part = waiting.pop()
        texts.append(part.text)
        for _, _, name in references(part):
            if name in fragments and name not in seen:
                seen.add(name)
                waiting.append(fragments[name])
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def key(block: Block, step: str) -> str:
    """What a block goes by in a report; a nameless one has no lasting name."""
    return f"{block.path}::{step}"


def read(path: Path) -> dict:
    """The report in this file; an empty one if there is none."""
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {"runs": [], "blocks": {}}


def write(path: Path, book: Book, outcomes: Mapping[str, dict], date: str) -> None:
    """Bring the report in this file up to date with these outcomes."""
    with alone(path.parent):
        _write(path, book, outcomes, date)


def _write(path: Path, book: Book, outcomes: Mapping[str, dict], date: str) -> None:
    report = read(path)
    run = {"date": date, **machine(book.config)}
    runs = [r for r in report["runs"] if r != run] + [run]
    blocks = dict(report["blocks"])
    for entry in blocks.values():
        entry["run"] = runs.index(report["runs"][entry["run"]])
    known = {key(b, b.name) for page in book.pages for b in page.blocks if b.name}
    blocks |= {name: {**entry, "run": len(runs) - 1} for name, entry in outcomes.items()}
    blocks = {name: blocks[name] for name in sorted(blocks) if name in known}
    used = sorted({entry["run"] for entry in blocks.values()})
    for entry in blocks.values():
        entry["run"] = used.index(entry["run"])
    text = json.dumps({"runs": [runs[i] for i in used], "blocks": blocks}, indent=1)
    replace(path, text + "\n")


def machine(config: Config) -> dict:
    """Where a run took place, as far as the book's own conditions can tell."""
    versions = {"python": platform.python_version()}
    for name in config.not_for_weaving:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {"versions": versions, "conditions": found_here(config)}


class Reports:
    """The reports that the book's settings name, as far as they are there."""

    def __init__(self, book: Book):
        self.book = book
        self.paths: dict[str, Path] = {}
        for setting in book.config.reports:
            label, _, file = setting.partition(":")
            self.paths[label.strip()] = book.config.base / file.strip()
        self._reports = {label: read(path) for label, path in self.paths.items()}

    def statuses(self, block: Block) -> list[Status]:
        """What each report that knows anything of the book says of this block."""
        found = []
        for label, report in self._reports.items():
            if report["blocks"]:
                said = [self._one(label, report, top) for top in self._tops(block)]
                found.append(min(said, key=lambda s: _ORDER.index(s.outcome)))
        return found

    def _tops(self, block: Block) -> Iterator[Block]:
        """A fragment runs where it stands: in the blocks that end up holding it."""
        if not block.fragment:
            yield block
            return
        page = self.book.page(block.path)
        waiting, seen = [block.fragment], set()
        while waiting:
            for user in self.book.users(page, waiting.pop()):
                if user.line not in seen:
                    seen.add(user.line)
                    if user.fragment:
                        waiting.append(user.fragment)
                    else:
                        yield user

    def _one(self, label: str, report: dict, block: Block) -> Status:
        entry = report["blocks"].get(key(block, block.name)) if block.name else None
        if entry is None:
            return Status(label, "unknown")
        date = report["runs"][entry["run"]]["date"]
        if entry["hash"] != digest(self.book, block):
            return Status(label, "changed", date)
        return Status(label, entry["outcome"], date, entry.get("reason", ""))


#: The worst comes first.
_ORDER = (FAILED, "changed", "unknown", SKIPPED, PASSED)
