"""`literate tangle | check | list | numbers`. Exit status: 0 fine, 1 something to mend, 2 misuse."""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path

from .book import Book, place
from .cache import pages
from .config import load
from .errors import BookError
from .tangle import check, tangle


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    if arguments is None:  # a process of its own: all that it reads of a book stays to its end
        gc.disable()
    try:
        config = load(Path(options.book))
        return options.run(Book(config, pages(config)), options)
    except BookError as error:
        print(error, file=sys.stderr)
    except OSError as error:
        print(f"{error.filename or options.book}: {error.strerror}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("literate", description="Tangle a MyST book.")
    parser.add_argument("--book", default=".", metavar="DIR", help="the book's folder")
    commands = parser.add_subparsers(required=True, metavar="command")
    command = commands.add_parser("tangle", help="write the files that changed")
    command.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 and show what is stale"
    )
    command.add_argument(
        "--force", action="store_true", help="overwrite files that were edited by hand"
    )
    command.set_defaults(run=lambda book, o: _check(book) if o.check else _tangle(book, o.force))
    command = commands.add_parser("check", help="the same as tangle --check")
    command.set_defaults(run=lambda book, o: _check(book))
    command = commands.add_parser("list", help="list every block with its place and options")
    command.set_defaults(run=lambda book, o: _list(book))
    command = commands.add_parser("numbers", help="agree to what the pages' numbers print now")
    command.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 and show what has changed"
    )
    command.add_argument("pages", nargs="*", metavar="PAGE", help="of these pages only")
    command.set_defaults(run=_numbers)
    return parser


def _tangle(book: Book, force: bool) -> int:
    done = tangle(book, force)
    for change in done:
        verb = "removed" if change.new is None else "wrote"
        print(f"{verb} {place(book.config, change.path)}")
    if not done:
        print(f"{len(book.files)} files are as the book has them")
    return 0


def _check(book: Book) -> int:
    stale = check(book)
    for change in stale:
        page = change.file.page if change.file else "no chapter"
        line = min(change.file.spans) if change.file else 1
        print(f"{page}:{line}: {place(book.config, change.path)} is stale", file=sys.stderr)
        print(change.diff(book.config.base))
    return 1 if stale else 0


def _list(book: Book) -> int:
    for page in book.pages:
        for block in page.blocks:
            words = [f":{k}: {_plain(v)}".rstrip() for k, v in block.options.items()]
            print(f"{block.path}:{block.line}: {block.language} {' '.join(words)}".rstrip())
    for problem in book.problems:
        print(problem, file=sys.stderr)
    return 1 if book.problems else 0


def _numbers(book: Book, options: argparse.Namespace) -> int:
    from .printed import agreed, changed, printed, write  # the other commands need no number

    if not book.config.printed:
        print("[tool.literate] has no `printed`: this book keeps no numbers", file=sys.stderr)
        return 1
    wanted = {Path(name).resolve() for name in options.pages}
    chosen = [p for p in book.pages if not wanted or p.file.resolve() in wanted]
    if unknown := wanted - {p.file.resolve() for p in chosen}:
        print(f"no page of this book: {', '.join(map(str, sorted(unknown)))}", file=sys.stderr)
        return 1
    if options.check:
        before = agreed(book.config)
        found = [
            problem
            for page in chosen
            for problem in changed(page, before.get(page.path, []), printed(page, book.config))
        ]
    else:
        found = write(book, chosen)
    for problem in found:
        print(problem)
    if not found:
        print(f"the numbers of {len(chosen)} pages read as agreed to")
    return 1 if options.check and found else 0


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
