"""Say where in the book a failure is, whichever file Python ran."""

from __future__ import annotations

import traceback
from pathlib import Path

from _pytest._code.code import ReprFileLocation, TerminalRepr

from ..book import Book, place
from ..errors import BookError
from .chapter import Chapter
from .steps import Step


class FailureReport(TerminalRepr):
    """A traceback that starts in the book and ends with `chapters/….md:LINE`."""

    def __init__(self, text: str, path: str, line: int, message: str):
        self.text = text
        #: What it is made from, as plain values that may travel between processes.
        self.parts = (text, path, line, message)
        self.reprcrash = ReprFileLocation(path, line, f"{path}:{line}: {message}")

    def toterminal(self, tw) -> None:
        tw.line(self.text)

    def __str__(self) -> str:
        return self.text


def report(error: BaseException, chapter: Chapter, fallback: int) -> FailureReport:
    """Describe a failure of a step that starts at line `fallback` of the chapter."""
    if isinstance(error, BookError):
        first = error.problems[0]
        return FailureReport(str(error), first.path, first.line, first.message.split("\n")[0])
    book = chapter.book
    path, line = _place(error, chapter) or (chapter.page.path, fallback)
    said = _said(error)
    # First, since xdist keeps the text alone and pytest sums it up by its first line;
    # and last, where whoever reads a traceback looks.
    headline = f"{path}:{line}: {said}"
    text = f"{headline}\n{_traceback(error, book, chapter)}\n{headline}"
    earlier = [b for b in chapter.failed if b.line < fallback]
    if earlier:
        text += f"\n(an earlier block failed too: {earlier[0].path}:{earlier[0].line})"
    skipped = [s for s in chapter.steps if s.line < fallback and _left_out(s, chapter)]
    if skipped and isinstance(error, NameError):
        text += f"\n(an earlier block did not run: {chapter.page.path}:{skipped[0].line})"
    return FailureReport(text, path, line, said)


def _said(error: BaseException) -> str:
    """The exception on one line, also if it cannot print itself."""
    try:
        words = str(error).splitlines()
    except Exception:
        words = ["(its message cannot be printed)"]
    return ": ".join([type(error).__name__, *words[:1]])


def _left_out(step: Step, chapter: Chapter) -> bool:
    """Whether names of this step may be missing here that are there on other machines."""
    block = getattr(step, "block", None)
    missing = block is not None and "requires" in block.options and step.needs_predecessors
    return missing and bool(step.skip_reason(chapter))


def _place(
    error: BaseException, chapter: Chapter, seen: frozenset[int] = frozenset()
) -> tuple[str, int] | None:
    """The innermost line of the book that was running.

    An error that the book itself raised is where it was raised. One that came out of
    somebody else's code (Triton's interpreter, say) often wraps one that says more.
    """
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        # What does not parse has no frame: it says itself where it is.
        found = _in_book(error.filename, error.lineno, chapter.book)
        if found:
            return found
    frames = [(f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__)]
    places = [_in_book(*frame, chapter.book) for frame in reversed(frames)]
    inner = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if inner is not None and id(inner) not in seen and not any(places[:1]):
        found = _place(inner, chapter, seen | {id(error)})  # `raise e from e` is a circle
        if found:
            return found
    return next((place for place in places if place), None)


def _in_book(filename: str, line: int, book: Book) -> tuple[str, int] | None:
    name = place(book.config, filename)
    if book.page(name):
        return name, line
    root = book.config.code_root
    path = Path(filename)
    if path.is_relative_to(root):
        file = book.files.get(path.relative_to(root).as_posix())
        origin = file.origin(line) if file else None
        if origin:
            return origin.block.path, origin.page_line
    return None


def _traceback(error: BaseException, book: Book, chapter: Chapter) -> str:
    whole = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = whole
    while part is not None:
        part.stack = traceback.StackSummary.from_list(_from_book_on(part.stack, book))
        part = part.__cause__ or (None if part.__suppress_context__ else part.__context__)
    return "".join(whole.format()).rstrip()


def _from_book_on(stack, book: Book):
    """Drop the frames of pytest, Sybil and this package above the book's first one."""
    frames = list(stack)
    for index, frame in enumerate(frames):
        if _in_book(frame.filename, frame.lineno or 0, book):
            return frames[index:]
    return frames
