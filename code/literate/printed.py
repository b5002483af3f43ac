"""The numbers that the pages print, kept with the book, so that none changes unseen.

A computed number is as right as its expression, and any expression that evaluates would
pass. So what each page prints is written down once somebody has looked at it:

    printed = "chapters/_reports/numbers.json"      # in the book's settings
    literate numbers                                # bring the file up to date
    literate numbers --check                        # say what has changed, write nothing

From then on a page whose numbers read otherwise is red at the line of each, until they
are agreed to again; a new page is red until its numbers have been looked at once. New data, a changed formula and a slip of the pen all show up as a
diff of what the book says, next to the sentences that must still be true.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from pathlib import Path

from .book import Book
from .config import Config
from .errors import BookError, Problem, shown
from .expressions import evaluate
from .records import Page
from .writing import alone
from .writing import write as replace


def record(config: Config) -> Path | None:
    """The file with what was agreed to; None if the book keeps none."""
    return config.base / config.printed if config.printed else None


def agreed(config: Config) -> Mapping[str, list[str]]:
    """What each page printed when somebody last looked."""
    file = record(config)
    if file is None:
        return {}
    try:
        return json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:  # two branches were merged, say
        said = f"no JSON: {error}; delete it and run `literate numbers` if all numbers are right"
        raise BookError(Problem(shown(file, config.base), 1, said)) from error


def printed(page: Page, config: Config) -> list[str]:
    """What a page's numbers print, in reading order. Raises what an expression raises."""
    return [evaluate(expression.text, config).text for expression in page.expressions]


def changed(page: Page, before: list[str], now: list[str]) -> list[Problem]:
    """A problem at the line of each number that reads otherwise than agreed to."""
    found = []
    for kind, a, b, c, d in SequenceMatcher(None, before, now, autojunk=False).get_opcodes():
        old, new = before[a:b], now[c:d]
        if kind == "replace" and len(old) == len(new):
            found += [_problem(page, c + i, *pair) for i, pair in enumerate(zip(old, new))]
        elif kind != "equal":
            found += [_problem(page, n, None, text) for n, text in enumerate(new, c)]
            found += [_problem(page, c, text, None) for text in old]
    return found


def _problem(page: Page, index: int, old: str | None, new: str | None) -> Problem:
    at = page.expressions[min(index, len(page.expressions) - 1)] if page.expressions else None
    if new is None:
        said = f"the book agreed on {old!r} about here, and no number prints it"
    elif old is None:
        said = f"{{num}}`{at.text}` prints {new!r}, which nobody has agreed to yet"
    else:
        said = f"{{num}}`{at.text}` prints {new!r}; the book agreed on {old!r}"
    return Problem(page.path, at.line if at else 1, f"{said}: if it is right, run `literate numbers`")


def write(book: Book, pages: Iterable[Page]) -> list[Problem]:
    """Agree to what these pages print now; returns what is new."""
    file = record(book.config)
    now = {page.path: printed(page, book.config) for page in pages}
    with alone(file.parent):  # somebody else may be agreeing to another page
        before = dict(agreed(book.config))
        after = {p.path: before[p.path] for p in book.pages if p.path in before} | now
        kept = {path: texts for path, texts in sorted(after.items()) if texts}
        text = json.dumps(kept, indent=1, ensure_ascii=False) + "\n"
        if not file.is_file() or file.read_text("utf-8") != text:
            replace(file, text)
    at = {page.path: page for page in book.pages}
    return [p for path in now for p in changed(at[path], before.get(path, []), now[path])]
