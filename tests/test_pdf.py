"""The book on paper: everything in it, nothing off the page, fonts embedded."""

from __future__ import annotations

import pickle
import re
import shutil

import pytest
from conftest import ROOT, require

PDF = ROOT / "_build/pdf/foundations.pdf"
ENVIRONMENT = ROOT / "_build/doctrees/latex/environment.pickle"
LOG = ROOT / "_build/latex/foundations.log"


@pytest.fixture(scope="module")
def pdf():
    require("tex", bool(shutil.which("lualatex")), "no LuaLaTeX here")
    require("tex", PDF.exists(), "the PDF is not built: run `make pdf`")
    from pypdf import PdfReader

    return PdfReader(PDF)


@pytest.fixture(scope="module")
def text(pdf):
    return "\n".join(page.extract_text() for page in pdf.pages)


def test_every_chapter_is_in_it(pdf, text):
    titles = {re.sub(r"^[\d.]+\s+", "", entry.title) for entry in _flat(pdf.outline)}
    for chapter in sorted((ROOT / "chapters").glob("[0-9]*.md")):
        title = re.search(r"^# (.+)$", chapter.read_text("utf-8"), re.MULTILINE)[1]
        assert title in titles, f"{title!r} is not among {sorted(titles)}"


def _flat(outline):
    for entry in outline:
        yield from _flat(entry) if isinstance(entry, list) else [entry]


def test_fonts_are_embedded(pdf):
    loose = set()
    for page in pdf.pages:
        fonts = page.get("/Resources", {}).get("/Font", {})
        for font in fonts.values():
            for inner in font.get_object().get("/DescendantFonts", [font]):
                described = inner.get_object().get("/FontDescriptor")
                if described and not any(k.startswith("/FontFile") for k in described.get_object()):
                    loose.add(str(font.get_object()["/BaseFont"]))
    assert loose == set()


@pytest.mark.parametrize(("kind", "word"), [("figure", r"Fig\."), ("code-block", "Listing")])
def test_every_figure_and_listing_number_is_there(text, kind, word):
    """TeX counts by itself, and its numbers are those of the screen.

    The explorer and the appendix have no chapter's number and on paper go on with the
    last chapter's; of those only how many there are is compared.
    """
    numbers = [
        ".".join(map(str, number))
        for kinds in _woven().toc_fignumbers.values()
        for number in kinds.get(kind, {}).values()
    ]
    printed = set(re.findall(word + r"\s*(\d+(?:\.\d+)*)", text))
    assert len(numbers) > 30
    assert {number for number in numbers if "." in number} - printed == set()
    assert len(printed) == len(numbers)


def _woven():
    """What Sphinx knew of the pages that it wrote for TeX."""
    with ENVIRONMENT.open("rb") as file:
        return pickle.load(file)


def test_bibliography_and_index_are_there(text):
    assert "Index" in text and "Bibliography" in text


def test_measured_numbers_carry_a_footnote(text):
    assert re.search(r"Measured on NVIDIA H200", text)


def test_no_character_is_missing_and_no_reference_dangles():
    log = LOG.read_text("utf-8", "replace") if LOG.exists() else pytest.skip("no TeX log here")
    assert re.findall(r"Missing character: .*", log) == []
    assert re.findall(r"LaTeX Warning: Reference .* undefined", log) == []
    assert re.findall(r"LaTeX Warning: Citation .* undefined", log) == []


def test_no_line_runs_off_the_page():
    log = LOG.read_text("utf-8", "replace") if LOG.exists() else pytest.skip("no TeX log here")
    wide = [float(points) for points in re.findall(r"Overfull \\hbox \((\d+\.\d+)pt", log)]
    assert [points for points in wide if points > 2] == []
