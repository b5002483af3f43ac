"""`{literate-reference} options`, or `settings`: a table of what there is, made from the code.

So a page that explains this package to a book's authors cannot fall behind it.
"""

from __future__ import annotations

import inspect
import re

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

from ..config import Config
from ..options import OPTIONS, SPHINX

#: A field of the settings as its class has it, below the comment that explains it.
FIELD = re.compile(r"((?:^    #: .*\n)+)^    (\w+): [^=\n]+ = (.+)$", re.MULTILINE)


def options() -> tuple[list[str], list[list[str]]]:
    """Heading and rows of the options of a block; what is between backticks is code."""
    rows = [[f"`:{option.name}:`", option.about] for option in OPTIONS.values()]
    theirs = ", ".join(f"`:{name}:`" for name in sorted(SPHINX))
    return ["option", "what it does"], [*rows, [theirs, "Sphinx's own, passed on to it untouched."]]


def settings() -> tuple[list[str], list[list[str]]]:
    """Heading and rows of the settings of a book."""
    rows = []
    for comment, name, default in FIELD.findall(inspect.getsource(Config)):
        about = " ".join(line.strip().removeprefix("#: ") for line in comment.splitlines())
        default = "[" + default.strip("()").rstrip(",") + "]" if default[0] == "(" else default
        rows.append([f"`{name}`", f"`{default}`", about])
    return ["setting", "without it", "what it says"], rows


TABLES = {"options": options, "settings": settings}


class ReferenceDirective(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        chosen = directives.choice(self.arguments[0], tuple(TABLES))
        self.env.note_dependency(inspect.getsourcefile(Config))
        self.env.note_dependency(__file__)
        return [_table(*TABLES[chosen]())]


def _table(head: list[str], rows: list[list[str]]) -> nodes.table:
    group = nodes.tgroup("", cols=len(head))
    group += [nodes.colspec("", colwidth=1) for _ in head]
    group += nodes.thead("", _row(head))
    group += nodes.tbody("", *map(_row, rows))
    return nodes.table("", group, classes=["colwidths-auto"])


def _row(cells: list[str]) -> nodes.row:
    row = nodes.row()
    for cell in cells:
        parts = re.split("`([^`]+)`", cell)
        said = [nodes.literal("", p) if i % 2 else nodes.Text(p) for i, p in enumerate(parts) if p]
        row += nodes.entry("", nodes.paragraph("", "", *said))
    return row


def setup(app) -> None:
    app.add_directive("literate-reference", ReferenceDirective)
