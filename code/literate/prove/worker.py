"""The second Python of a page that asked for one: steps in on stdin, outcomes out on stdout.

A line in is a step's id and line and the page's digest; a line out says that the step
passed, why it was skipped, or what a failure's report says.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

from _pytest.config import apply_warning_filters

from ..book import Book
from ..config import load
from .chapter import Chapter
from .documents import BookSybil, prove
from .fresh import digest
from .report import report


def main(file: Path, filters: list[str]) -> None:
    """Answer until nobody asks any more."""
    questions = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # What the page's code reads is empty; what it prints goes where its errors go.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    book = Book(load(file.parent))
    chapter = BookSybil(book).parse(file).chapter
    chapter.enter()
    for question in questions:
        id, line, digest_there = json.loads(question)
        with warnings.catch_warnings():
            apply_warning_filters(filters, [])
            answer = outcome(chapter, id, line, digest_there)
        sys.stdout.flush()
        print(json.dumps(answer), file=answers, flush=True)


def outcome(chapter: Chapter, id: str, line: int, digest_there: str) -> dict:
    """What to say of a step once it has run."""
    try:
        if digest(chapter.page) != digest_there:
            raise RuntimeError("the page was changed while it was being tested")
        step = next(s for s in chapter.steps if (s.id, s.line) == (id, line))
        return {"skipped": prove(step, chapter)}
    except BaseException as error:
        return {"report": report(error, chapter, line).parts}


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
