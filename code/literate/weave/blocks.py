"""Code blocks on the page: which file they belong to, which fragments they pull in."""

from __future__ import annotations

import re
from html import escape, unescape
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.directives.code import CodeBlock

from .. import options as block_options
from ..book import REFERENCE, Book, references
from ..records import Block
from . import reference
from .figures import figure_nodes
from .files import file_link
from .status import status_nodes


class literal_with_references(nodes.literal_block):
    """Highlighted code in which `<<name>>` lines are links to their fragments."""


class folded(nodes.General, nodes.Element):
    """Content behind a summary line; print, which cannot unfold it, leaves it out."""


class BookCodeBlock(CodeBlock):
    """Sphinx's code-block, with the options of `literate.options`."""

    option_spec = CodeBlock.option_spec | {
        name: directives.unchanged for name in block_options.OPTIONS
    }

    def run(self) -> list[nodes.Node]:
        book: Book = self.env.app.literate_book
        block = self._record(book)
        if block is None:
            return self._plain()
        name = self.options.pop("name", "")
        (shown,) = self._highlighted(book, block)
        for literal in shown.findall(nodes.literal_block):
            literal["at"] = block.line
        body: list[nodes.Node] = [shown]
        header = self._header(book, block)
        if header:
            body = [_captioned(header, shown)]
        self._anchor(body[0], block, name)
        marks = block_options.marks(block.options, book.config)
        if marks and not header:
            body = [_marked(marks, status_nodes(self.env, block), body)]
        if "figure" in block.options:
            fold = folded("", *body)
            body = [*figure_nodes(self, book, block), fold]
        return body

    def _record(self, book: Book) -> Block | None:
        """The reader's record of this very block."""
        page = book.page_at(Path(self.env.doc2path(self.env.docname)))
        text = "\n".join(self.content)
        same = [b for b in page.blocks if b.text.rstrip("\n") == text.rstrip("\n")] if page else []
        name = self.options.get("name")
        same = [b for b in same if b.name == name] or same
        return min(same, key=lambda b: abs(b.line - self.lineno), default=None)

    def _plain(self) -> list[nodes.Node]:
        """As Sphinx shows it, with the code as written for the census to compare."""
        made = super().run()
        for node in made:
            for literal in node.findall(nodes.literal_block):
                literal["code"] = "\n".join(self.content)
        return made

    def _highlighted(self, book: Book, block: Block) -> list[nodes.Node]:
        made = self._plain()
        if block.is_output:
            made[0]["classes"].append("block-output")
        if block.tangle or block.fragment:
            literal = next(iter(made[0].findall(nodes.literal_block)), made[0])
            fragments = book.fragments(book.page(block.path))
            named = (name for _, _, name in references(block))
            refs = {name: _anchor_of(fragments[name]) for name in named if name in fragments}
            if refs and isinstance(literal, nodes.literal_block):
                made[0] = _with_references(literal, refs)
        return made

    def _header(self, book: Book, block: Block) -> list[nodes.Node]:
        """What stands above a block: its file or its fragment's name, and its marks."""
        parts: list[nodes.Node] = []
        if block.tangle:
            parts.append(file_link(block.tangle, block.name))
        elif block.fragment:
            parts.append(nodes.inline("", f"⟨{block.fragment}⟩", classes=["fragment-name"]))
            parts += self._used_in(book, block)
        if parts:
            for mark in block_options.marks(block.options, book.config):
                parts += [nodes.Text(" "), nodes.inline("", mark, classes=["block-mark"])]
            for status in status_nodes(self.env, block):
                parts += [nodes.Text(" "), status]
        return parts

    def _used_in(self, book: Book, block: Block) -> list[nodes.Node]:
        page = book.page(block.path)
        parts: list[nodes.Node] = [nodes.Text(" used in ")]
        for index, user in enumerate(book.users(page, block.fragment)):
            if index:
                parts.append(nodes.Text(", "))
            label = f"⟨{user.fragment}⟩" if user.fragment else (user.name or user.tangle)
            parts.append(nodes.reference("", label, internal=True, refid=_anchor_of(user)))
        return parts

    def _anchor(self, node: nodes.Element, block: Block, name: str) -> None:
        if name:
            self.options["name"] = name
            self.add_name(node)
        anchor = _anchor_of(block)
        if anchor not in node["ids"]:
            node["ids"].append(anchor)


def _captioned(header: list[nodes.Node], literal: nodes.Node) -> nodes.container:
    wrapper = nodes.container("", literal_block=True, classes=["literal-block-wrapper"])
    wrapper += nodes.caption("", "", *header)
    wrapper += literal
    return wrapper


def _marked(marks: list[str], statuses: list[nodes.Node], body: list[nodes.Node]):
    line = nodes.paragraph("", "", classes=["block-marks"])
    line += [nodes.inline("", mark, classes=["block-mark"]) for mark in marks]
    for status in statuses:
        line += [nodes.Text(" "), status]
    return nodes.container("", line, *body, classes=["marked-block"])


def _anchor_of(block: Block) -> str:
    if block.name:
        return nodes.make_id(block.name)
    return f"block-{block.line}"


def _with_references(literal: nodes.literal_block, refs: dict[str, str]) -> nodes.Node:
    """The same block with each reference turned into a comment, which highlights well."""
    lines = []
    for line in literal.rawsource.split("\n"):
        match = REFERENCE.match(line)
        name = " ".join(match["name"].split()) if match else None
        lines.append(f"{match['indent']}# <<{name}>>" if name else line)
    text = "\n".join(lines)
    new = literal_with_references(text, text, **literal.attributes)
    new["refs"] = refs
    new.source, new.line = literal.source, literal.line
    return new


_COMMENT = re.compile(r'<span class="c1?"># &lt;&lt;(.+?)&gt;&gt;</span>')


def _visit_html(translator, node) -> None:
    try:
        translator.visit_literal_block(node)
    except nodes.SkipNode:
        def link(match: re.Match) -> str:
            target = node["refs"].get(unescape(match[1]))
            if target is None:
                return match[0]
            return f'<a class="fragment-ref" href="#{escape(target)}">⟨{match[1]}⟩</a>'

        translator.body[-1] = _COMMENT.sub(link, translator.body[-1])
        raise


def _visit_folded(translator, node) -> None:
    translator.body.append(
        '<details class="figure-code"><summary>The code that draws this figure</summary>'
    )


def _nothing(translator, node) -> None:
    pass


def _skip(translator, node) -> None:
    raise nodes.SkipNode


def setup(app) -> None:
    app.add_directive("code-block", BookCodeBlock, override=True)
    reference.setup(app)
    app.add_node(
        literal_with_references,
        html=(_visit_html, _nothing),
        latex=(lambda t, n: t.visit_literal_block(n), _nothing),
        text=(lambda t, n: t.visit_literal_block(n), lambda t, n: t.depart_literal_block(n)),
    )
    app.add_node(
        folded,
        html=(_visit_folded, lambda t, n: t.body.append("</details>")),
        latex=(_skip, None),
        text=(_skip, None),
    )
