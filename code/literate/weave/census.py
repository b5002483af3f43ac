"""What a page shows is what the tests read: compared block by block after each reading.

The reader and Sphinx parse with the same tokens, but a setting in conf.py or a page
outside the book's sources could still part them. Then the build says so and fails.
"""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

from docutils import nodes
from sphinx.util import logging

from ..book import Book
from .numbers import number

logger = logging.getLogger(__name__)


def check(app, document: nodes.document) -> None:
    """Sphinx's `doctree-read`: warn about code that is shown and not tested, or not shown."""
    book: Book = app.literate_book
    file = Path(app.env.doc2path(app.env.docname)).resolve()
    page = book.page_at(file)
    # A figure's code stands folded behind it, and so is among these as well.
    shown = [node for node in document.findall(nodes.literal_block) if "code" in node]
    if page is None:
        python = [n for n in document.findall(nodes.literal_block) if n.get("language") == "python"]
        if shown or python or any(document.findall(number)):
            logger.warning(
                "this page is not among the book's sources, so nothing on it is tested",
                location=app.env.docname,
            )
        return
    for node, block in zip_longest(shown, page.blocks):
        if node is None:
            logger.warning(
                "the tests read a block here that the page does not show",
                location=f"{file}:{block.line}",
            )
        elif block is None or node["code"].rstrip("\n") != block.text.rstrip("\n"):
            where = node.line or (block.line if block else 1)
            logger.warning(
                "the page shows a block here that the tests do not read as it stands",
                location=f"{file}:{where}",
            )
            return


def setup(app) -> None:
    app.connect("doctree-read", check)
