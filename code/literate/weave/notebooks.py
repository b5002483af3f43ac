"""Each page with code as a Jupyter notebook, made from the page as Sphinx resolved it.

Numbers, references and citations are the page's own. A block that runs is a cell, with
what it is said to print; a tangled block stands there whole, its fragments pulled in, and
runs in the module that it is a part of; a figure's block runs alone; a fragment by itself
is shown as text. In `conf.py`:

    literate_notebooks = {
        "requirement": "package[notebook]",          # what the first cell installs
        "import": "package",                         # and how to see that it is there
        "launch": "https://host/{repository}/{file}" # optional: where to open one
    }
    literate_repository = "https://host/owner/name"  # one address; empty: none is known

A page whose blocks cannot run without the page itself says so in its front matter, and then
has no notebook:

    literate:
      no-notebook: why there is none
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from docutils import nodes

from ..book import REFERENCE, Book, module_name
from ..records import Block, Page
from .answers import answer, hidden
from .figures import drawing
from .status import block_status
from .widgets import widget

FOLDER = "notebooks"
_LISTS = (nodes.bullet_list, nodes.enumerated_list)
_SILENT = (nodes.target, nodes.comment, nodes.raw, nodes.system_message, block_status, widget, drawing)


class Notebook:
    """Cells, written while the page's nodes are walked."""

    def __init__(self, book: Book, page: Page, numbers: dict):
        self.book, self.page = book, page
        self.numbers = numbers
        self.blocks = {block.line: block for block in page.blocks}
        self.cells: list[dict] = []
        self.pending: list[str] = []
        self.names: set[str] = set()

    # -- cells -------------------------------------------------------------------------

    def code(self, source: str, name: str) -> None:
        self.flush()
        self.cells.append(
            {"cell_type": "code", "id": self.identity(name), "metadata": {}, "execution_count": None,
             "source": source.splitlines(keepends=True), "outputs": []}
        )  # fmt: skip

    def flush(self) -> None:
        text = "\n\n".join(part for part in self.pending if part.strip())
        self.pending = []
        if text.strip():
            self.cells.append(
                {"cell_type": "markdown", "id": self.identity(f"text-{len(self.cells)}"),
                 "metadata": {}, "source": text.splitlines(keepends=True)}
            )  # fmt: skip

    def identity(self, name: str) -> str:
        name = re.sub(r"[^A-Za-z0-9_-]", "-", name)[:60] or "cell"
        while name in self.names:
            name += "-"
        self.names.add(name)
        return name

    # -- blocks of the page ------------------------------------------------------------

    def block(self, node: nodes.Node, depth: int = 1) -> None:
        if isinstance(node, nodes.section):
            for child in node.children:
                self.block(child, depth + 1)
        elif isinstance(node, nodes.title):
            self.pending.append("#" * min(depth - 1 or 1, 6) + " " + self.inline(node))
        elif isinstance(node, (nodes.paragraph, nodes.rubric)):
            text = self.inline(node)
            self.pending.append(f"**{text}**" if isinstance(node, nodes.rubric) else text)
        elif isinstance(node, nodes.literal_block):
            self.literal(node)
        elif isinstance(node, answer):
            asked = f"answer = None  # {node.astext()}: your number instead of None\n"
            self.code(
                f'{asked}check(answer, "{hidden(node["value"])}", {node["tolerance"]})', "answer"
            )
        elif isinstance(node, nodes.math_block):
            self.pending.append(self.formula(node))
        elif isinstance(node, nodes.table):
            self.pending.append(self.table(node))
        elif isinstance(node, (*_LISTS, nodes.definition_list)):
            self.pending.append(self.listing(node))
        elif isinstance(node, nodes.figure):
            caption = next(iter(node.findall(nodes.caption)), None)
            number = self.numbers.get(("figure", node["ids"][0] if node["ids"] else ""))
            if caption is not None:
                self.pending.append(f"*Figure{number}: {self.inline(caption)}*" if number else f"*{self.inline(caption)}*")
        elif isinstance(node, nodes.caption):
            pass  # of a code block: said with the block
        elif isinstance(node, nodes.block_quote):
            before, self.pending = self.pending, []
            for child in node.children:
                self.block(child, depth)
            quoted = "\n\n".join(self.pending).replace("\n", "\n> ")
            self.pending = [*before, "> " + quoted]
        elif isinstance(node, _SILENT) or node.tagname in ("toctree", "index", "footnote"):
            pass
        elif isinstance(node, nodes.TextElement):
            text = self.inline(node)
            if "title" in node.tagname:
                text = f"**{text}**"
            self.pending.append(text)
        else:
            for child in node.children:
                self.block(child, depth)

    def literal(self, node: nodes.literal_block) -> None:
        block = self.blocks.get(node.get("at", 0))
        if block is None:
            self.pending.append(_fenced(node.get("language", ""), node.get("code", node.astext())))
        elif block.is_output and self.cells and self.cells[-1]["cell_type"] == "code":
            text = (block.text.rstrip("\n") + "\n").splitlines(keepends=True)
            self.cells[-1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": text}]
        elif block.tangle and module_name(block.tangle):
            file = self.book.files[block.tangle]
            first, last = file.span(block)
            text = "\n".join(line.text for line in file.lines[first - 1 : last])
            self.code(f"%%tangled {module_name(block.tangle)}\n{text}", block.name or block.tangle)
        elif block.runs:
            text = block.text.rstrip("\n")
            if "figure" in block.options:
                text = f"%%drawn\n{text}"
            needs = ", ".join(map(str, block.options.get("requires", ())))
            text = f"%%requires {needs}\n{text}" if needs else text
            self.code(text, block.name or f"block-{block.line}")
        else:
            if block.fragment:
                self.pending.append(f"*⟨{block.fragment}⟩, a piece of a cell:*")
            self.pending.append(_fenced(block.language, _named(block.text)))

    def formula(self, node: nodes.math_block) -> str:
        number = node.get("number")
        label = self.numbers.get(("equation", node.get("label", ""))) or number
        tag = f" \\tag{{{label}}}" if label else ""
        return f"$$\n{node.astext().strip()}{tag}\n$$"

    def table(self, node: nodes.table) -> str:
        rows = [
            [" ".join(self.inline(p) for p in entry.children).replace("|", "\\|").replace("\n", " ")
             for entry in row.findall(nodes.entry)]
            for row in node.findall(nodes.row)
        ]  # fmt: skip
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])

    def listing(self, node: nodes.Node) -> str:
        lines = []
        for place, item in enumerate(node.children, 1):
            if isinstance(item, nodes.definition_list_item):
                terms = ", ".join(self.inline(t) for t in item.findall(nodes.term))
                inner = [self.inside(c) for c in item.children if isinstance(c, nodes.definition)]
                lines.append(f"- **{terms}**: " + " ".join(inner).replace("\n", "\n  "))
            else:
                mark = f"{place}. " if isinstance(node, nodes.enumerated_list) else "- "
                lines.append(mark + self.inside(item).replace("\n", "\n" + " " * len(mark)))
        return "\n".join(lines)

    def inside(self, item: nodes.Node) -> str:
        parts = []
        for child in item.children:
            if isinstance(child, _LISTS):
                parts.append(self.listing(child))
            elif isinstance(child, nodes.literal_block):
                parts.append(_fenced(child.get("language", ""), child.get("code", child.astext())))
            elif isinstance(child, nodes.math_block):
                parts.append(self.formula(child))
            elif isinstance(child, nodes.Element):
                parts.append(self.inline(child))
        return "\n".join(parts)

    # -- inline ------------------------------------------------------------------------

    def inline(self, node: nodes.Node) -> str:
        return "".join(self.word(child) for child in node.children).strip()

    def word(self, node: nodes.Node) -> str:
        if isinstance(node, nodes.Text):
            return re.sub(r"([*_`<$\\])", r"\\\1", node.astext()).replace("\N{NO-BREAK SPACE}", " ")
        if isinstance(node, nodes.literal):
            text = node.astext()
            return f"`` {text} ``" if "`" in text else f"`{text}`"
        if isinstance(node, nodes.math):
            return f"${node.astext()}$"
        if isinstance(node, (*_SILENT, nodes.footnote_reference)) or node.tagname == "index":
            return ""
        text = "".join(self.word(child) for child in node.children)
        if isinstance(node, nodes.reference) and re.match(r"https?:", node.get("refuri", "")):
            return f"[{text}]({node['refuri']})"
        mark = {"emphasis": "*", "strong": "**"}.get(node.tagname, "")
        return f"{mark}{text}{mark}" if text.strip() else text


def _named(text: str) -> str:
    """The text with each `<<name>>` as a comment, as the page shows it."""
    lines = (REFERENCE.sub(r"\g<indent># ⟨\g<name>⟩", line) for line in text.split("\n"))
    return "\n".join(lines)


def _fenced(language: str, text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _first_cell(settings: dict, repository: str, conditions: str, environ: dict) -> str:
    lines = []
    if environ:
        lines += ["import os", "", f"os.environ.update({environ!r})  # before anything reads it"]
    requirement, module = settings["requirement"], settings["import"]
    lines += ["import importlib.util", "", f'if importlib.util.find_spec("{module}") is None:']
    if repository:
        lines.append(f'    %pip install --quiet "{requirement} @ git+{repository}"')
    else:
        said = f"install {requirement} first: pip install '.{requirement[len(module):]}' in the book's repository"
        lines.append(f"    raise ImportError({said!r})")
    lines += ["", "from literate.notebook import start", "", f'start("{conditions}")']
    return "\n".join(lines)


def notebook(app, docname: str, doctree: nodes.document) -> dict | None:
    """The page as a notebook, or None if nothing on it runs or it says that it has none."""
    book: Book = app.literate_book
    page = book.page_at(Path(app.env.doc2path(docname)))
    if page is None or not any(b.runs or b.tangle for b in page.blocks):
        return None
    asked = page.meta.get("literate")
    asked = asked if isinstance(asked, dict) else {}
    if asked.get("no-notebook"):
        return None
    figures = app.env.toc_fignumbers.get(docname, {}).get("figure", {})
    numbers = {("figure", id): " " + ".".join(map(str, n)) for id, n in figures.items()}
    made = Notebook(book, page, numbers)
    environ = asked.get("environ", {})
    settings, repository = app.config.literate_notebooks, app.config.literate_repository
    made.code(_first_cell(settings, repository, book.config.conditions, environ), "install")
    for child in doctree.children:
        made.block(child)
    made.flush()
    # The title first, then how to install, then the rest.
    made.cells.insert(0, made.cells.pop(1))
    return {
        "cells": made.cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _write(app, pagename, templatename, context, doctree) -> None:
    if app.builder.name != "html" or doctree is None or not app.config.literate_notebooks:
        return
    made = notebook(app, pagename, doctree)
    file = Path(app.outdir) / FOLDER / f"{pagename}.ipynb"
    if made is None:
        file.unlink(missing_ok=True)  # of a build before the page said so
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", "utf-8")
    buttons = context.setdefault("header_buttons", [])
    name = f"{FOLDER}/{pagename}.ipynb"
    buttons.append(
        {"type": "link", "url": context["pathto"](name, True), "icon": "fas fa-download",
         "tooltip": "Download this chapter as a notebook", "label": "notebook"}
    )  # fmt: skip
    repository = app.config.literate_repository
    launch = app.config.literate_notebooks.get("launch")
    if repository and launch:
        owner_and_name = repository.removesuffix(".git").split("/", 3)[3]
        url = launch.format(repository=owner_and_name, file=name)
        buttons.append(
            {"type": "link", "url": url, "icon": "fas fa-rocket",
             "tooltip": "Open this chapter's notebook in Colab", "label": "launch"}
        )  # fmt: skip


def setup(app) -> None:
    app.add_config_value("literate_notebooks", {}, "html", dict)
    app.add_config_value("literate_repository", "", "html", str)
    app.connect("html-page-context", _write, priority=900)
