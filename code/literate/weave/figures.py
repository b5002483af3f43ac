"""Figure blocks: the chapter's own code draws them while the page is woven."""

from __future__ import annotations

import hashlib
import io
import re
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.util import logging

from ..book import Book
from ..drawing import close, draw
from ..records import Block

logger = logging.getLogger(__name__)

#: Whatever is drawn in this colour takes the colour of the page's text.
INK = "#010203"


class drawing(nodes.General, nodes.Element):
    """A vector drawing: inlined in HTML, so that it follows the page's colours."""


def figure_nodes(directive, book: Book, block: Block) -> list[nodes.Node]:
    """Run the block and wrap what it drew, with its caption, as a numbered figure."""
    for path in book.config.data_files:
        directive.env.note_dependency(str(path))
    try:
        svg, pdf = _draw(book, block)
    except Exception as error:
        logger.warning(
            "figure %s: %s: %s", block.name, type(error).__name__, error,
            location=(directive.env.docname, block.line),
        )  # fmt: skip
        return []
    key = f"fig-{block.name or block.line}"
    figure = nodes.figure("", names=[key])
    figure += drawing(svg=svg, pdf=pdf, alt=block.options["alt"], key=key)
    caption, messages = directive.parse_inline(block.options["figure"], lineno=block.line)
    figure += nodes.caption("", "", *caption)
    directive.state.document.note_explicit_target(figure)
    return [figure, *messages]


def _draw(book: Book, block: Block) -> tuple[str, bytes]:
    figure = draw(block, book.config)
    from matplotlib import rc_context

    salt = hashlib.sha256(block.text.encode()).hexdigest()[:8]
    common = {"transparent": True, "bbox_inches": "tight"}
    # The salt and the missing date make two builds of the same figure the same bytes.
    with rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        svg = io.StringIO()
        figure.savefig(svg, format="svg", metadata={"Date": None}, **common)
    pdf = io.BytesIO()
    figure.savefig(pdf, format="pdf", metadata={"CreationDate": None}, **common)
    close(figure)
    return _inline(svg.getvalue(), salt), pdf.getvalue()


def _inline(svg: str, salt: str) -> str:
    """The svg element alone, its ids its own, its ink the page's."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="\1-{salt}"', svg)
    svg = re.sub(r'(xlink:href="#|href="#|url\(#)([^")]+)', rf"\1\2-{salt}", svg)
    return svg.replace(INK, "currentColor")


def _visit_html(translator, node) -> None:
    opening = f'<svg role="img" aria-label="{escape(node["alt"])}"'
    svg = re.sub(r"<svg", lambda m: opening, node["svg"], count=1)
    translator.body.append(f'<div class="drawing">{svg}</div>')
    raise nodes.SkipNode


def _visit_latex(translator, node) -> None:
    name = f"{node['key']}.pdf"
    (Path(translator.builder.outdir) / name).write_bytes(node["pdf"])
    translator.body.append(
        "\n\\noindent\\sphinxincludegraphics[width=\\linewidth,height=0.5\\textheight,"
        f"keepaspectratio]{{{{{name[:-4]}}}.pdf}}\n"
    )
    raise nodes.SkipNode


def _visit_text(translator, node) -> None:
    translator.add_text(node["alt"])
    raise nodes.SkipNode


def setup(app) -> None:
    app.add_node(
        drawing,
        html=(_visit_html, None),
        latex=(_visit_latex, None),
        text=(_visit_text, None),
    )
