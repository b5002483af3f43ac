"""The whole book: every page, and the files that its blocks add up to."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from .config import Config
from .errors import Problem, shown
from .records import Block, Page

#: A line of a block that pulls a fragment in.
REFERENCE = re.compile(r"^(?P<indent>[ \t]*)<<(?P<name>[^<>]+)>>[ \t]*$")
#: Blocks of a file stand this far apart, as Python's style guide has it.
GAP = ("", "")
#: Fragments within fragments; a person has lost the thread long before.
DEEPEST = 50
MARK = "# Tangled from "
ADVICE = ": edit it there, then run `make tangle`."
DIGEST = "# Content hash: "


class Line(NamedTuple):
    """A line of a tangled file and where in the book it was written."""

    text: str
    block: Block | None = None
    page_line: int = 0


@dataclass(frozen=True)
class TangledFile:
    """A file, line by line, with the span of each top-level block."""

    target: str
    page: str
    lines: tuple[Line, ...]
    spans: Mapping[int, tuple[int, int]]

    @cached_property
    def text(self) -> str:
        return "".join(line.text + "\n" for line in self.lines)

    def origin(self, number: int) -> Line | None:
        """What stands at 1-based line `number`, if the book wrote it."""
        line = self.lines[number - 1] if 0 < number <= len(self.lines) else None
        return line if line and line.block else None

    def span(self, block: Block) -> tuple[int, int]:
        """First and last 1-based line of a top-level block."""
        return self.spans[block.line]


def references(block: Block) -> Iterator[tuple[int, str, str]]:
    """Each `<<name>>` line of a block: its offset from 0, its indentation, its name."""
    if "<<" not in block.text:
        return
    for offset, text in enumerate(block.lines):
        match = REFERENCE.match(text)
        if match:
            yield offset, match["indent"], " ".join(match["name"].split())


class Book:
    """Pages and files, read once. `problems` is everything that is wrong with them."""

    def __init__(self, config: Config, pages: list[Page] | None = None):
        self.config = config
        self.pages = pages if pages is not None else _read(config)
        self.problems: list[Problem] = [p for page in self.pages for p in page.problems]
        self.files: dict[str, TangledFile] = {}
        self._by_path = {page.path: page for page in self.pages}
        self._tangle()

    def page(self, path: str) -> Page | None:
        return self._by_path.get(path)

    def page_at(self, file: Path) -> Page | None:
        """The page that is this file, however its folder was reached."""
        return self._by_file.get(file.resolve())

    @cached_property
    def _by_file(self) -> dict[Path, Page]:
        return {page.file.resolve(): page for page in self.pages}

    def fragments(self, page: Page) -> dict[str, Block]:
        return {block.fragment: block for block in page.blocks if block.fragment}

    def users(self, page: Page, fragment: str) -> list[Block]:
        """The blocks that pull a fragment in."""
        return [b for b in page.blocks if fragment in {name for _, _, name in references(b)}]

    def problems_of(self, page: Page) -> list[Problem]:
        return sorted((p for p in self.problems if p.path == page.path), key=lambda p: p.line)

    # -- putting files together --------------------------------------------------------

    def _tangle(self) -> None:
        owner: dict[str, Page] = {}
        named: dict[str, Block] = {}
        for page in self.pages:
            self._check_fragments(page)
            targets: dict[str, list[Block]] = {}
            for block in page.blocks:
                other = named.setdefault(block.name, block) if block.name else block
                if other.path != block.path:
                    self._complain(block, f":name: {block.name} is taken by {other.path}:{other.line}")
                if block.tangle:
                    targets.setdefault(block.tangle, []).append(block)
                    if block.language == "python" and not block.tangle.endswith((".py", ".pyi")):
                        self._complain(block, f"Python in {block.tangle} would never run: name it .py")
            for target, blocks in targets.items():
                if target in owner:
                    self._complain(
                        blocks[0], f"{target} belongs to {owner[target].path}; one file, one chapter"
                    )
                    continue
                owner[target] = page
                self.files[target] = self._file(target, page, blocks)
        for target, file in self.files.items():
            for folder in map(str, Path(target).parents):
                if folder in self.files:
                    said = f"{target}: {folder} is a file already, it cannot be a folder"
                    self.problems.append(Problem(file.page, min(file.spans), said))

    def _file(self, target: str, page: Page, blocks: list[Block]) -> TangledFile:
        body: list[Line] = []
        spans: dict[int, tuple[int, int]] = {}
        header = 3  # the two comment lines and the blank one above the first block
        for block in blocks:
            if body:
                body += [Line(text) for text in GAP]
            first = header + len(body) + 1
            body += self._expand(page, block, "", ())
            spans[block.line] = (first, header + len(body))
        digest = _digest("".join(line.text + "\n" for line in body))
        top = [
            Line(f"{MARK}{page.path}{ADVICE}"),
            Line(f"{DIGEST}{digest}"),
            Line(""),
        ]
        return TangledFile(target, page.path, (*top, *body), spans)

    def _expand(self, page: Page, block: Block, indent: str, stack: tuple[str, ...]) -> list[Line]:
        pulled = {offset: (space, name) for offset, space, name in references(block)}
        fragments = self.fragments(page) if pulled else {}
        lines = []
        for offset, text in enumerate(block.lines):
            if offset not in pulled:
                # A blank line stays blank: indentation must not become trailing space.
                lines.append(Line(indent + text if text else "", block, block.code_line + offset))
                continue
            space, name = pulled[offset]
            inner = (*stack, block.fragment) if block.fragment else stack
            if name in inner:
                circle = " → ".join((*inner, name))
                self._complain(block, f"fragment goes round in a circle: {circle}", offset)
            elif len(inner) >= DEEPEST:
                self._complain(block, f"fragments are nested more than {DEEPEST} deep", offset)
            elif name in fragments:
                lines += self._expand(page, fragments[name], indent + space, inner)
        return lines

    def _check_fragments(self, page: Page) -> None:
        defined: dict[str, Block] = {}
        for block in page.blocks:
            if block.fragment in defined:
                first = defined[block.fragment]
                self._complain(block, f"fragment <<{block.fragment}>> is defined at line {first.line}")
            elif block.fragment:
                defined[block.fragment] = block
        pulls: dict[str, set[str]] = {}
        reached: set[str] = set()
        for block in page.blocks:
            for offset, _, name in references(block):
                if block.runs:
                    self._complain(block, "<<…>> belongs in a tangled block or a fragment", offset)
                elif block.tangle or block.fragment:
                    pulled = reached if block.tangle else pulls.setdefault(block.fragment, set())
                    pulled.add(name)
                    if name not in defined:
                        self._complain(block, f"no fragment is called <<{name}>> on this page", offset)
        # A fragment that only unused fragments use stands in no file, and nothing proves it.
        waiting = list(reached)
        while waiting:
            new = pulls.get(waiting.pop(), set()) - reached
            reached |= new
            waiting += new
        for name, block in defined.items():
            if name not in reached:
                self._complain(block, f"fragment <<{name}>> is never used: no file has it")

    def _complain(self, block: Block, message: str, offset: int | None = None) -> None:
        problem = block.problem(message, offset)
        if problem not in self.problems:
            self.problems.append(problem)


def _read(config: Config) -> list[Page]:
    from .reader import read  # the parser takes long to import, and may not be needed

    return [read(path, config) for path in config.pages()]


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def untouched(text: str) -> bool | None:
    """Is this what a tangle once wrote? None if it never came from a tangle at all."""
    lines = text.split("\n", 3)
    if len(lines) < 4 or not lines[0].startswith(MARK) or not lines[1].startswith(DIGEST):
        return None
    # The hash is of the body; the lines around it must be a tangle's own, too.
    header = lines[0].endswith(ADVICE) and not lines[2]
    return header and lines[1] == DIGEST + _digest(lines[3])


def module_name(target: str) -> str | None:
    """`roofline/softmax.py` → `roofline.softmax`; None for a file Python cannot import."""
    path = Path(target)
    if path.suffix != ".py" or not all(part.isidentifier() for part in path.with_suffix("").parts):
        return None
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or None


def place(config: Config, path: str | Path) -> str:
    """A file's path as the book's readers know it."""
    return shown(Path(path), config.base)
