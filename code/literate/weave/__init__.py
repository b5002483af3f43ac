"""The Sphinx extension: `extensions = ["myst_parser", "literate.weave"]` is all it takes.

`blocks` shows code blocks with their files, fragments and marks, `numbers` evaluates the
`{num}` role, `figures` draws figure blocks, `files` adds a page for each tangled file, and
`census` compares what each page shows with what the tests read. `ebook` is the builder of an
EPUB, `notebooks` writes a notebook for each page, and `cards`, `answers` and `widgets` are for
a browser alone.
"""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

from ..book import Book
from ..config import load
from ..reports import Reports
from . import (
    accessible, answers, blocks, cards, census, ebook, exercises, figures, files, formulas,
    machines, notebooks, numbers, status, widgets,
)  # fmt: skip

PARTS = (
    accessible, answers, blocks, cards, census, ebook, exercises, figures, files, formulas,
    machines, notebooks, numbers, status, widgets,
)  # fmt: skip
logger = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict:
    """Register everything with Sphinx."""
    app.connect("config-inited", _configure)
    app.connect("builder-inited", _read_book)
    app.connect("env-before-read-docs", _report_problems)
    for part in PARTS:
        part.setup(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True, "version": "1"}


def _configure(app: Sphinx, config) -> None:
    settings = load(Path(app.confdir))
    config.myst_enable_extensions = set(settings.extensions)
    config.html_static_path = [*config.html_static_path, str(Path(__file__).parent / "static")]
    app.add_css_file("literate.css")


def _read_book(app: Sphinx) -> None:
    # Workers are forked after this, so one reading of the book serves them all.
    app.literate_book = Book(load(Path(app.confdir)))
    app.literate_reports = Reports(app.literate_book)


def _report_problems(app: Sphinx, env, docnames) -> None:
    base = app.literate_book.config.base
    for problem in app.literate_book.problems:
        logger.warning(problem.message, location=f"{base / problem.path}:{problem.line}")
