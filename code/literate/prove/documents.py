"""Sybil documents made from the reader's records; no text is searched twice."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from sybil import Document, Example, Region, Sybil

from ..book import Book
from .chapter import Chapter
from .steps import Step, steps


class BookDocument(Document):
    """A page of the book, as Sybil sees it."""

    chapter: Chapter


class BookSybil(Sybil):
    """A Sybil whose parser is the book's reader and whose ids are the blocks' names."""

    def __init__(self, book: Book):
        super().__init__(
            parsers=[],
            pattern="*.md",
            document_types={".md": BookDocument},
        )
        self.book = book
        self._pages = {str(page.file.resolve()): page for page in book.pages}

    def has(self, path: Path) -> bool:
        return str(path.resolve()) in self._pages

    def parse(self, path: Path) -> BookDocument:
        """The page as the book has read it: never a second reading that may differ."""
        page = self._pages[str(path.resolve())]
        document = BookDocument(page.source, str(path))
        document.chapter = Chapter(self.book, page)
        document.chapter.steps = list(steps(document.chapter))
        document.namespace = document.chapter.module.__dict__
        for region in self._regions(document):
            document.add(region)
        return document

    def identify(self, example: Example) -> str:
        return example.parsed.id

    def _regions(self, document: BookDocument) -> Iterator[Region]:
        starts = [0, *accumulate(len(line) + 1 for line in document.text.split("\n"))]
        for step in document.chapter.steps:
            # A step is a place, not a stretch: a caption's number stands inside a block.
            place = min(starts[step.line - 1] + step.column, document.end)
            yield Region(place, place, step, evaluate)


def evaluate(example: Example) -> None:
    """Run a step; the steps it builds on are replayed first if they have not run."""
    _prove(example.parsed, example.document.chapter, example.document.pytest_config)


def prove(step: Step, chapter: Chapter) -> str | None:
    """All that a test of the step does; returns why it was skipped, or None."""
    step.compare(chapter)
    reason = step.skip_reason(chapter)
    if reason is None:
        _prove(step, chapter, None)
    return reason


def _prove(step: Step, chapter: Chapter, config) -> None:
    if step.needs_predecessors:
        for before in chapter.steps:
            if before.line >= step.line:
                break
            if before.needs_predecessors and before.line not in chapter.done:
                if before.skip_reason(chapter):
                    chapter.done.add(before.line)
                else:
                    _run(before, chapter, config)
    _run(step, chapter, config)


def _run(step: Step, chapter: Chapter, config) -> None:
    chapter.done.add(step.line)
    try:
        step.run(chapter, config)
    except BaseException:
        if getattr(step, "block", None):
            chapter.failed.append(step.block)
        raise
