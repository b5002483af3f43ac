"""Two clean builds give the same bytes: HTML, the EPUB, tangled code, and the PDF's text.

A small book here, in processes whose hashes differ; the whole book with BOOK_WHOLE=1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

WHOLE = bool(os.environ.get("BOOK_WHOLE"))
CONF = """\
    extensions = ["myst_parser", "literate.weave"]
    root_doc = "chapters/a"
    exclude_patterns = ["_build"]
    """
PAGE = """\
    # A

    ```{code-block} python
    :name: top
    :tangle: lib.py
    def f(x):
        <<body>>
    ```

    ```{code-block} python
    :fragment: body
    return x
    ```

    ```{code-block} python
    :name: line
    :figure: A line.
    :alt: A line from the left to the right.
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot([1, 2, 3], label="a")
    ```

    Of {num}`1 + 1 -> d`, {num}`3 -> d`.
    """


def build(base: Path, seed: str, builder: str = "html", **variables: str) -> Path:
    environment = {k: v for k, v in os.environ.items() if k not in ("SOURCE_DATE_EPOCH", "BOOK_HTML")}
    environment |= {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT / "code"), **variables}
    shutil.rmtree(base / "_build", ignore_errors=True)
    command = [sys.executable, "-m", "sphinx", "-q", "-b", builder, "-d", "_build/doctrees", ".", "_build/out"]
    done = subprocess.run(command, cwd=base, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kept = base.parent / f"{base.name}-{builder}-{seed}"
    shutil.rmtree(kept, ignore_errors=True)
    return (base / "_build/out").rename(kept)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file; Sphinx's own notes for the next build, which nobody reads, left out."""
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in sorted(folder.rglob("*")) if p.is_file() and p.suffix not in (".pickle", ".doctree")
    }  # fmt: skip


def same(one: Path, other: Path) -> None:
    a, b = contents(one), contents(other)
    assert a.keys() == b.keys() and len(a) > 5
    assert [name for name in a if a[name] != b[name]] == []


@pytest.fixture
def book(tmp_path):
    from conftest import SmallBook

    (tmp_path / "book").mkdir()
    made = SmallBook(tmp_path / "book")
    made.write("conf.py", CONF)
    made.page(PAGE)
    return made


def test_two_builds_of_a_small_book_are_the_same(book):
    tangled = []
    for _ in "ab":
        shutil.rmtree(book.base / "code")
        assert book.run("literate", "tangle").returncode == 0
        tangled.append(contents(book.base / "code"))
    assert tangled[0] == tangled[1]
    same(build(book.base, "1"), build(book.base, "2"))


@pytest.mark.skipif(not WHOLE, reason="BOOK_WHOLE=1 builds the whole book twice")
@pytest.mark.timeout(7200)
def test_two_builds_of_the_whole_book_are_the_same(tmp_path):
    base = tmp_path / "book"
    shutil.copytree(ROOT, base, ignore=shutil.ignore_patterns("_build", ".*", "__pycache__", "*.egg-info"))
    day = {"SOURCE_DATE_EPOCH": "1700000000"}
    for builder in ("html", "epub"):
        same(build(base, "1", builder, **day), build(base, "2", builder, **day))
    latex = [build(base, seed, "latex", **day) for seed in "12"]
    same(*latex)
    if not shutil.which("lualatex") or not shutil.which("latexmk"):
        pytest.skip("HTML and LaTeX are the same; the PDF needs lualatex and latexmk")
    import pypdf

    texts = []
    for folder in latex:
        command = ["latexmk", "-lualatex", "-e", "$max_repeat=8", "-interaction=nonstopmode", "-silent"]
        subprocess.run([*command, "foundations.tex"], cwd=folder, check=True, capture_output=True,
                       env={**os.environ, **day})  # fmt: skip
        texts.append([page.extract_text() for page in pypdf.PdfReader(folder / "foundations.pdf").pages])
    assert texts[0] == texts[1]
