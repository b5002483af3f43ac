"""Write the files that the book's blocks add up to: safely, and only when they changed."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .book import DIGEST, MARK, Book, TangledFile, place, untouched
from .errors import BookError, Problem, shown
from .writing import UNFINISHED, Part, alone


@dataclass(frozen=True)
class Change:
    """What stands between the book and one file on disk."""

    path: Path
    old: str | None
    new: str | None
    #: Somebody changed the file by hand since it was last tangled.
    edited: bool
    file: TangledFile | None

    def diff(self, base: Path) -> str:
        """A unified diff, each hunk headed by the line of the chapter to look at.

        It reads in the direction of the work to do: for a stale file from the disk to
        the book, for an edited one from the book to the disk.
        """
        name = shown(self.path, base)
        book, disk = _lines(self.new), _lines(self.old)
        sides = ((book, "as the book has it"), (disk, "on disk"))
        (a, a_name), (b, b_name) = sides if self.edited else sides[::-1]
        diff = difflib.unified_diff(
            a, b, f"{name} ({a_name})", f"{name} ({b_name})", lineterm="", n=2
        )
        book_side = "-" if self.edited else "+"
        lines: list[str] = []
        number = head = 0
        for line in diff:
            if line.startswith("@@"):
                number = int(line.split(book_side)[1].split(",")[0].split()[0])
                head = len(lines)
            elif number and line[:1] in ("+", "-") and head:
                lines[head] += f" {self._origin(number)}"
                head = 0
            if number and not line.startswith("@@") and line[:1] in (" ", book_side):
                number += 1
            lines.append(line)
        return "\n".join(lines)

    def _origin(self, number: int) -> str:
        """The chapter's line behind a line of the file, or behind the nearest one above."""
        if self.file is None:
            return "(in no chapter)"
        found = (self.file.origin(n) for n in range(number, 0, -1))
        line = next((origin.page_line for origin in found if origin), min(self.file.spans))
        return f"{self.file.page}:{line}"


def _lines(text: str | None) -> list[str]:
    """A file's lines, the content hash masked: it always differs and says nothing."""
    # Other line ends and a missing last one are differences too, and have to be seen.
    lines = (text or "").replace("\r", "␍").split("\n")
    return [DIGEST + "…" if line.startswith(DIGEST) else line for line in lines]


def changes(book: Book) -> list[Change]:
    """Every file that is not as the book has it, among them files it no longer has."""
    found = []
    root = book.config.code_root
    folders: dict[Path, str] = {}
    claimed = set()
    for target, file in book.files.items():
        path = _inside(root, target, file, folders)
        claimed.add(path)
        with _at_its_chapter(book, file):
            old = _text(path)
        if old != file.text:
            edited = old is not None and not untouched(old)
            found.append(Change(path, old, file.text, edited, file))
    for path in sorted(set(root.rglob("*")) - claimed) if root.is_dir() else []:
        # A link is somebody's own: no tangle makes one.
        if path.is_symlink() or not path.is_file():
            continue
        if "__pycache__" in path.parts or path.name.startswith(UNFINISHED):
            continue
        with path.open("rb") as stream:
            if not stream.read(len(MARK)) == MARK.encode():
                continue
        old = _text(path)
        found.append(Change(path, old, None, not untouched(old or ""), None))
    return found


def check(book: Book) -> list[Change]:
    """The changes a tangle would make. Raises for a book that cannot be tangled."""
    if book.problems:
        raise BookError(*book.problems)
    return changes(book)


def tangle(book: Book, force: bool = False) -> list[Change]:
    """Write what changed, and return it. Nothing is written if any file would be lost."""
    with alone(book.config.code_root):
        # Nobody else is writing now: what is unfinished here was left behind by a kill.
        for path in book.config.code_root.rglob(f"{UNFINISHED}*"):
            path.unlink(missing_ok=True)
        found = check(book)
        edited = [change for change in found if change.edited]
        if edited and not force:
            raise BookError(*(_refusal(book, change) for change in edited))
        _carry_out(book, found)
    return found


def _carry_out(book: Book, found: list[Change]) -> None:
    """Write all files beside their places first: a disk that fills up has cost nothing."""
    parts: list[tuple[Change, Part]] = []
    try:
        for change in found:
            if change.new is not None:
                with _at_its_chapter(book, change.file):
                    parts.append((change, Part(change.path, change.new)))
        _save(book, parts)
        waiting = {part.path: part for _, part in parts}
        for change in found:
            with _at_its_chapter(book, change.file):
                _forget_bytecode(change.path)
                if change.path in waiting:
                    waiting[change.path].take_its_place()
                else:
                    change.path.unlink()
    finally:
        for _, part in parts:
            part.drop()


def _save(book: Book, parts: list[tuple[Change, Part]]) -> None:
    def save(pair: tuple[Change, Part]) -> None:
        with _at_its_chapter(book, pair[0].file):
            pair[1].save()

    if len(parts) < 8:
        for pair in parts:
            save(pair)
        return
    from concurrent.futures import ThreadPoolExecutor  # a disk saves many files at once

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(save, parts))


@contextlib.contextmanager
def _at_its_chapter(book: Book, file: TangledFile | None) -> Iterator[None]:
    """A full disk or a file in the way is reported where its chapter asks for the file."""
    try:
        yield
    except OSError as error:
        if file is None:
            raise
        name = place(book.config, book.config.code_root / file.target)
        problem = Problem(file.page, min(file.spans), f"{name}: {error.strerror or error}")
        raise BookError(problem) from error


def _forget_bytecode(path: Path) -> None:
    """Python takes bytecode for fresh if its source has the same size and second."""
    if path.suffix == ".py":
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def _refusal(book: Book, change: Change) -> Problem:
    base = book.config.base
    name = place(book.config, change.path)
    if change.file is None:
        return Problem(name, 1, "changed by hand, and no chapter has it: move it, or use --force")
    how = "was changed by hand" if untouched(change.old or "") is False else "was not tangled"
    return Problem(
        name, 1,
        f"{how}: carry the change over to {change.file.page} at the lines below, "
        f"or use --force to drop it\n{change.diff(base)}",
    )  # fmt: skip


def _inside(root: Path, target: str, file: TangledFile, folders: dict[Path, str]) -> Path:
    """The file's path; refused if a link would lead the write to another place."""
    path = root / target
    folder = path.parent
    if folder not in folders:
        real = folder.resolve()
        folders[folder] = "" if real == folder else "is behind a link"
        if not real.is_relative_to(root):
            folders[folder] = "leads out of the code root through a link"
    wrong = folders[folder] or ("is behind a link" if path.is_symlink() else "")
    if wrong:
        raise BookError(Problem(file.page, min(file.spans), f"{target} {wrong}"))
    return path


def _text(path: Path) -> str | None:
    """The file's text with its own line ends; what is not text compares unequal."""
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except FileNotFoundError:
        return None
