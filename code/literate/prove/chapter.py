"""The module in which a chapter's own blocks run.

It is a real module: it has a name, stands in `sys.modules`, and its functions pickle.
Python and Triton find a function's source by file and line, so the page's code, each
line at its own number and all prose blank, is put where `linecache` looks.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from _pytest.assertion.rewrite import rewrite_asserts

from ..book import Book
from ..records import Block, Page

if TYPE_CHECKING:
    from .steps import Step


class Chapter:
    """A page while it is being proved: its module, and which steps have run."""

    def __init__(self, book: Book, page: Page):
        self.book = book
        self.page = page
        self.file = str(page.file)
        # The suffix stays in the name: a page `torch.md` must not hide a module `torch`.
        name = re.sub(r"\W", "_", page.path)
        self.module = ModuleType(name, f"The code of {page.path}.")
        self.module.__file__ = self.file
        self.steps: list[Step] = []
        self.done: set[int] = set()
        #: What its numbers printed, by the index of each in the page's expressions.
        self.printed: dict[int, str] = {}
        self.failed: list[Block] = []
        self._outside: tuple | None = None

    def enter(self) -> None:
        """Start in the book's folder, wherever the tests were started."""
        self._outside = (os.getcwd(), dict(os.environ), list(sys.path), list(sys.argv))
        os.chdir(self.book.config.base)

    def leave(self) -> None:
        """What a chapter did to its process's surroundings is not the next chapter's."""
        if self._outside is not None:
            folder, environment, sys.path[:], sys.argv[:] = self._outside
            os.chdir(folder)
            for name in os.environ.keys() - environment:
                del os.environ[name]
            os.environ.update(environment)

    def _show(self) -> None:
        # Said again for each block: a page of another book may have the same name.
        sys.modules[self.module.__name__] = self.module
        lines = [""] * (self.page.source.count("\n") + 1)
        for block in self.page.blocks:
            if block.runs:
                lines[block.code_line - 1 : block.code_line - 1 + len(block.lines)] = block.lines
        # No modification time: linecache then never looks at the page itself.
        linecache.cache[self.file] = (
            len(self.page.source), None, [line + "\n" for line in lines], self.file,
        )  # fmt: skip

    def execute(self, block: Block, config) -> None:
        """Run a block at its true lines, with pytest's detailed assertions."""
        self._show()
        source = "\n" * (block.code_line - 1) + block.text + "\n"
        tree = ast.parse(source, self.file)
        rewrite_asserts(tree, source.encode(), self.file, config)
        code = compile(tree, self.file, "exec", dont_inherit=True)
        exec(code, self.module.__dict__)
