"""Each chapter as a notebook: valid, readable, and it runs from top to bottom on a CPU.

Two chapters are run here; `BOOK_NOTEBOOKS=all` runs every one.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from conftest import ROOT, require

HTML = Path(os.environ.get("BOOK_HTML") or ROOT / "_build/html")
FOLDER = HTML / "notebooks"
CHAPTERS = sorted(p.relative_to(ROOT).with_suffix("") for p in (ROOT / "chapters").rglob("[0-9]*.md"))
RUN = CHAPTERS if os.environ.get("BOOK_NOTEBOOKS") == "all" else CHAPTERS[1:2] + [Path("chapters/explorer")]


def notebook(chapter: Path) -> dict:
    require("html", (HTML / "index.html").exists(), "the book is not woven: run `make html`")
    return json.loads((FOLDER / f"{chapter}.ipynb").read_text("utf-8"))


def texts(chapter: Path, kind: str) -> list[str]:
    return ["".join(c["source"]) for c in notebook(chapter)["cells"] if c["cell_type"] == kind]


@pytest.mark.parametrize("chapter", CHAPTERS, ids=str)
def test_a_notebook_is_valid_and_starts_with_title_and_installation(chapter):
    import nbformat

    made = notebook(chapter)
    nbformat.validate(nbformat.from_dict(made))
    assert made["cells"][0]["source"][0].startswith("# ")
    assert "find_spec" in "".join(made["cells"][1]["source"])


@pytest.mark.parametrize("chapter", CHAPTERS, ids=str)
def test_prose_has_no_markup_that_jupyter_does_not_know(chapter):
    for text in texts(chapter, "markdown"):
        assert not re.search(r"\{[a-z:]+\}`|:::|^```\{|<<[a-z]", text, re.MULTILINE), text


@pytest.mark.parametrize("chapter", CHAPTERS, ids=str)
def test_every_block_that_runs_is_a_cell_and_no_fragment_is_left_out(chapter):
    from literate.book import Book
    from literate.config import load

    book = Book(load(ROOT))
    page = book.page(f"{chapter}.md")
    cells = texts(chapter, "code")
    assert len(cells) == 1 + sum(b.runs or (b.tangle or "").endswith(".py") for b in page.blocks)
    for text in cells:
        assert not re.search(r"^\s*<<", text, re.MULTILINE)
    for block in page.blocks:
        if block.runs and "requires" not in block.options and "figure" not in block.options:
            assert block.text.rstrip("\n") in cells


@pytest.mark.parametrize("chapter", RUN, ids=str)
def test_a_notebook_runs_on_a_cpu(chapter, tmp_path):
    import nbformat
    from nbclient import NotebookClient

    made = nbformat.from_dict(notebook(chapter))
    client = NotebookClient(made, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    assert all(c.execution_count for c in made.cells if c.cell_type == "code")
