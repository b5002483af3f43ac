"""What is proved of each record. A step has an id, a place, and `run`."""

from __future__ import annotations

import ast
import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass

from .. import options as block_options
from ..book import Line, TangledFile, module_name, place
from ..drawing import close, draw
from ..errors import BookError, Problem
from ..expressions import evaluate
from ..printed import agreed, changed
from ..records import Block, Expression
from .chapter import Chapter
from .output import difference
from .process import process_of


@dataclass
class Step:
    """One test. `line` to `end_line` is its stretch of the page."""

    id: str
    line: int
    end_line: int
    column: int = 0
    #: Whether the steps before it in the chapter have to have run.
    needs_predecessors = False

    def compare(self, chapter: Chapter) -> None:
        """Check the files; done on every machine, also where the step is then skipped."""

    def skip_reason(self, chapter: Chapter) -> str | None:
        return None

    def timeout(self, chapter: Chapter) -> float:
        return chapter.book.config.timeout

    def run(self, chapter: Chapter, config) -> None:
        raise NotImplementedError


@dataclass
class Census(Step):
    """Everything that the reader and the book found wrong with the page."""

    def run(self, chapter: Chapter, config) -> None:
        problems = chapter.book.problems_of(chapter.page)
        problems += filter(None, [process_of(chapter.page).problem])
        if problems:
            raise BookError(*problems)


@dataclass
class BlockStep(Step):
    """A step made from a block, with what its options say of running it."""

    block: Block | None = None

    def skip_reason(self, chapter: Chapter) -> str | None:
        return block_options.skip_reason(self.block.options, chapter.book.config)

    def timeout(self, chapter: Chapter) -> float:
        return self.block.options.get("timeout", chapter.book.config.timeout)


@dataclass
class Code(BlockStep):
    """Chapter-only code: run it, and compare what it prints if the page says."""

    needs_predecessors = True
    output: Block | None = None

    def run(self, chapter: Chapter, config) -> None:
        if self.output is None:
            chapter.execute(self.block, config)
            return
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            chapter.execute(self.block, config)
        tolerance = self.output.options["output"]
        diff = difference(self.output.text, printed.getvalue(), tolerance)
        if diff:
            raise BookError(self.output.problem(f"the block above prints something else\n{diff}"))


@dataclass
class Figure(BlockStep):
    """A figure block: drawn as the weaver draws it, with nothing of the chapter."""

    def run(self, chapter: Chapter, config) -> None:
        figure = draw(self.block, chapter.book.config)
        figure.savefig(io.BytesIO(), format="svg")
        close(figure)


@dataclass
class Fragment(BlockStep):
    """A fragment stands in its file wherever a block pulls it in."""

    def run(self, chapter: Chapter, config) -> None:
        """Nothing: it runs where it stands."""

    def compare(self, chapter: Chapter) -> None:
        files = [f for f in chapter.book.files.values() if f.page == chapter.page.path]
        for file in files:
            lines = [n for n, line in enumerate(file.lines, 1) if line.block is self.block]
            _same(chapter, file, lines, self.block)


@dataclass
class Tangled(BlockStep):
    """The file on disk holds exactly this block; the module that imports it is what runs."""

    needs_predecessors = True

    def compare(self, chapter: Chapter) -> None:
        file = self._file(chapter)
        first, last = file.span(self.block)
        _same(chapter, file, range(first, last + 1), self.block)
        if self.block.line == min(file.spans):
            _same_whole(chapter, file, self.block)

    def run(self, chapter: Chapter, config) -> None:
        self.compare(chapter)
        file = self._file(chapter)
        name = module_name(file.target)
        if name is None:
            return
        module = chapter.book.config.import_module(name)
        for defined in _defined(file, self.block):
            if hasattr(module, defined):
                setattr(chapter.module, defined, getattr(module, defined))

    def _file(self, chapter: Chapter) -> TangledFile:
        file = chapter.book.files.get(self.block.tangle)
        if file is None or file.page != self.block.path:
            raise BookError(self.block.problem(f"{self.block.tangle} belongs to another chapter"))
        return file


@dataclass
class Computed(Step):
    """A computed number evaluates, and to something that can be printed."""

    expression: Expression | None = None
    index: int = 0

    def run(self, chapter: Chapter, config) -> None:
        try:
            chapter.printed[self.index] = evaluate(self.expression.text, chapter.book.config).text
        except Exception as error:
            message = f"{{num}}`{self.expression.text}`: {type(error).__name__}: {error}"
            raise BookError(Problem(self.expression.path, self.expression.line, message)) from error


@dataclass
class Printed(Step):
    """The page's numbers read as somebody once agreed that they do."""

    def run(self, chapter: Chapter, config) -> None:
        page, settings = chapter.page, chapter.book.config
        for index, expression in enumerate(page.expressions):
            if index not in chapter.printed:
                chapter.printed[index] = evaluate(expression.text, settings).text
        now = [chapter.printed[index] for index in range(len(page.expressions))]
        problems = changed(page, agreed(settings).get(page.path, []), now)
        if problems:
            raise BookError(*problems)


def steps(chapter: Chapter) -> Iterator[Step]:
    """Every step of a page, in reading order; then its numbers as agreed to and its census."""
    page = chapter.page
    found = [_block_step(chapter, i, block) for i, block in enumerate(page.blocks)]
    found += [
        Computed(f"num {e.text}", e.line, e.line, e.column, expression=e, index=i)
        for i, e in enumerate(page.expressions)
    ]
    taken: dict[str, int] = {"census": 1, "numbers": 1}
    for step in sorted((s for s in found if s), key=lambda s: (s.line, s.column)):
        taken[step.id] = taken.get(step.id, 0) + 1
        if taken[step.id] > 1:
            step.id += f" #{taken[step.id]}"
        yield step
    last = page.source.count("\n") + 1
    config = chapter.book.config
    if config.printed and (page.expressions or page.path in agreed(config)):
        yield Printed("numbers", last, last)
    yield Census("census", last, last, column=len(page.source.split("\n")[-1]))


def _block_step(chapter: Chapter, index: int, block: Block) -> Step | None:
    common = {"line": block.line, "end_line": block.end_line, "block": block}
    if block.tangle:
        return Tangled(block.name or f"{block.tangle} {index}", **common)
    if block.fragment:
        return Fragment(block.name or block.fragment, **common)
    if block.language != "python":
        return None
    name = block.name or f"unnamed {index}"
    if "figure" in block.options:
        return Figure(name, **common)
    following = chapter.page.blocks[index + 1 : index + 2]
    output = following[0] if following and following[0].is_output else None
    return Code(name, **common, output=output)


def _same(chapter: Chapter, file: TangledFile, numbers, block: Block) -> None:
    """The numbered lines of the file on disk are as the book has them."""
    disk = _disk(chapter, file, block)
    for number in numbers:
        line = file.lines[number - 1]
        have = disk[number - 1] if number <= len(disk) else None
        if have != line.text:
            raise BookError(_stale(chapter, file, number, line, have))


def _same_whole(chapter: Chapter, file: TangledFile, block: Block) -> None:
    disk = _disk(chapter, file, block)
    if "\n".join(disk) + "\n" != file.text:
        _same(chapter, file, range(1, len(file.lines) + 1), block)
        raise BookError(
            block.problem(f"{_name(chapter, file)} goes on after the book's last line: tangle it")
        )


def _stale(chapter: Chapter, file: TangledFile, number: int, line: Line, have) -> Problem:
    where = line.page_line or min(file.spans)
    return Problem(
        file.page, where,
        f"{_name(chapter, file)}:{number} is stale: run `make tangle`\n"
        f"  the book has: {line.text!r}\n  the file has: {have!r}",
    )  # fmt: skip


def _disk(chapter: Chapter, file: TangledFile, block: Block) -> list[str]:
    path = chapter.book.config.code_root / file.target
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise BookError(
            block.problem(f"{_name(chapter, file)}: {error.strerror}: run `make tangle`")
        ) from error
    return text.removesuffix("\n").split("\n")


def _name(chapter: Chapter, file: TangledFile) -> str:
    return place(chapter.book.config, chapter.book.config.code_root / file.target)


def _defined(file: TangledFile, block: Block) -> list[str]:
    """The names that a block binds at the top level of its file."""
    first, last = file.span(block)
    names: list[str] = []
    # The whole file is parsed: a block need not be a whole statement.
    waiting: list[ast.AST] = [n for n in ast.parse(file.text).body if first <= n.lineno <= last]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.append(node.name)  # and not what it binds inside
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            if getattr(node, "module", None) != "__future__":
                names += [(a.asname or a.name).split(".")[0] for a in node.names]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif not isinstance(node, ast.Lambda):
            waiting += ast.iter_child_nodes(node)
    return names
