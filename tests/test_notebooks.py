"""Each chapter as a notebook: valid, readable, and it runs from top to bottom on a CPU.

Some are run here: the quickest, and those that ask most of a notebook; `BOOK_WHOLE=1`
runs every one. What a page's cells do is tested with the page, on every machine.
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
OTHERS = [Path("chapters/explorer"), Path("chapters/index")]
#: Code that asks where it stands, a figure that reuses a name, kernels that only compile.
HARD = ("02_", "04c_", "06_", "07_")
WHOLE = bool(os.environ.get("BOOK_WHOLE"))
RUN = [*OTHERS, *(page for page in CHAPTERS if WHOLE or page.name.startswith(HARD))]


def notebook(chapter: Path):
    require("html", (HTML / "index.html").exists(), "the book is not woven: run `make html`")
    import nbformat

    return nbformat.read(FOLDER / f"{chapter}.ipynb", as_version=4)


def texts(chapter: Path, kind: str) -> list[str]:
    return [c.source for c in notebook(chapter).cells if c.cell_type == kind]


@pytest.mark.parametrize("chapter", CHAPTERS, ids=str)
def test_a_notebook_is_valid_and_starts_with_title_and_installation(chapter):
    import nbformat

    made = notebook(chapter)
    nbformat.validate(made)
    assert made.cells[0].source.startswith("# ")
    assert "find_spec" in made.cells[1].source


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
    cells = [c for c in texts(chapter, "code") if not c.startswith("answer = None")]
    assert len(cells) == 1 + sum(b.runs or (b.tangle or "").endswith(".py") for b in page.blocks)
    for text in cells:
        assert not re.search(r"^\s*<<", text, re.MULTILINE)
    for block in page.blocks:
        if block.runs and "requires" not in block.options and "figure" not in block.options:
            assert block.text.rstrip("\n") in cells


@pytest.mark.timeout(600)
@pytest.mark.parametrize("chapter", RUN, ids=str)
def test_a_notebook_runs_on_a_cpu(chapter, tmp_path):
    from nbclient import NotebookClient

    made = notebook(chapter)
    NotebookClient(made, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert all(c.execution_count for c in made.cells if c.cell_type == "code")
    # Nobody has answered yet, and what needs a GPU says that there is none.
    for cell in made.cells:
        said = "".join(o.get("text", "") for o in cell.get("outputs", []))
        if cell.source.startswith("answer = None"):
            assert "Put your number" in said
        elif cell.source.startswith("%%requires cuda") and not _a_gpu_is_here():
            assert said.startswith("Not run: "), said


def test_a_page_has_a_notebook_or_says_why_it_has_none():
    from literate.book import Book
    from literate.config import load

    require("html", (HTML / "index.html").exists(), "the book is not woven: run `make html`")
    without = set()
    for page in Book(load(ROOT)).pages:
        if not any(b.runs or b.tangle for b in page.blocks):
            continue
        name = page.path.removesuffix(".md")
        button = f"{FOLDER.name}/{name}.ipynb" in (HTML / f"{name}.html").read_text("utf-8")
        assert button == (FOLDER / f"{name}.ipynb").exists(), name
        if not button:
            assert page.meta["literate"]["no-notebook"], name
            assert "This page has no notebook, since" in page.source, name
            without.add(name)
    assert without == {"chapters/harness"}


def _a_gpu_is_here() -> bool:
    import torch

    return torch.cuda.is_available()


def test_a_cell_of_the_package_is_the_package(tmp_path):
    """What a tangled cell defines is what the module does, and other names are left alone."""
    import nbformat
    from nbclient import NotebookClient

    new = nbformat.v4.new_code_cell
    cells = [
        new("from literate.notebook import start; start(); os = 1"),
        new("%%tangled colorsys\nimport math\ndef rgb_to_yiq(r, g, b):\n    return hls_to_rgb"),
        new("import colorsys\nassert rgb_to_yiq is colorsys.rgb_to_yiq"),
        new("assert colorsys.rgb_to_yiq(0, 0, 0) is colorsys.hls_to_rgb and math.pi > 3"),
        new("assert 'hls_to_rgb' not in globals() and os == 1"),
        new("from literate.notebook import check; check(2.01, 'Mi4w', 0.02); check(3, 'Mi4w', 0.02)"),
    ]
    made = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(made, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert made.cells[-1].outputs[0].text == "Right: 2.\nNot yet: too large.\n"


def test_a_figures_cell_keeps_its_names_to_itself(tmp_path):
    """As in the book, where a figure is drawn alone: neither side sees the other's names."""
    import nbformat
    from nbclient import NotebookClient

    new = nbformat.v4.new_code_cell
    draws = "from matplotlib.figure import Figure\nfigure = Figure()\ncard = figure.subplots().plot([0, 1])"
    cells = [
        new("from literate.notebook import start; start(); card = 1"),
        new(f"%%drawn\nassert 'card' not in globals()\n{draws}"),
        new("assert card == 1 and 'figure' not in globals()"),
    ]
    made = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(made, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (shown,) = made.cells[1].outputs
    assert "image/png" in shown.data


def test_a_page_without_a_notebook_gives_its_reason(small):
    clock = "---\nliterate:\n  no-notebook: {}\n---\n\n# A clock\n\n```{{code-block}} python\nprint(1)\n```\n"
    small.page(clock.format("it strikes"), "clock.md")
    small.page(clock.format("''"), "mute.md")
    small.write("index.md", "# Book\n\n```{toctree}\nchapters/clock\n```\n")
    small.write(
        "conf.py",
        """
        extensions = ["myst_parser", "literate.weave"]
        html_theme = "sphinx_book_theme"
        exclude_patterns = ["chapters/mute.md"]
        literate_notebooks = {"requirement": "clock[nb]", "import": "clock"}
        """,
    )
    stale = small.write("out/notebooks/chapters/clock.ipynb", "{}")
    made = small.run("sphinx", "-q", "-W", "-E", "-b", "html", ".", "out")
    assert made.returncode == 0, made.stderr
    assert not stale.exists()
    assert "clock.ipynb" not in (small.base / "out/chapters/clock.html").read_text("utf-8")
    assert small.prove("chapters/clock.md").returncode == 0
    said = small.prove("chapters/mute.md").stdout
    assert "chapters/mute.md:1: front matter `no-notebook:` takes the reason in words, not ''" in said


def test_a_launch_button_depends_on_one_setting(small):
    """No address, no button; with one, the button and the first cell know it."""
    small.page("# A clock\n\n```{code-block} python\n:name: tick\nprint(1)\n```\n", "clock.md")
    small.write("index.md", "# Book\n\n```{toctree}\nchapters/clock\n```\n")
    small.write(
        "conf.py",
        """
        import os
        project = "Clock"
        extensions = ["myst_parser", "literate.weave"]
        html_theme = "sphinx_book_theme"
        literate_notebooks = {"requirement": "clock[nb]", "import": "clock",
                              "launch": "https://run.example/{repository}/{file}"}
        literate_repository = os.environ.get("WHERE", "")
        """,
    )
    for where, there in (("", False), ("https://code.example/ann/clock", True)):
        made = small.run("sphinx", "-q", "-E", "-b", "html", "-D", f"literate_repository={where}",
                         ".", "out")  # fmt: skip
        assert made.returncode == 0, made.stderr
        page = (small.base / "out/chapters/clock.html").read_text("utf-8")
        button = "https://run.example/ann/clock/notebooks/chapters/clock.ipynb"
        assert (button in page) == there
        first = json.loads((small.base / "out/notebooks/chapters/clock.ipynb").read_text())["cells"][1]
        source = "".join(first["source"])
        assert (f"clock[nb] @ git+{where}" in source) == there
        assert ("raise ImportError" in source) != there
