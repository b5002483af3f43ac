"""What Sphinx makes of a small book: links both ways, marks, numbers, figures, errors."""

from __future__ import annotations

import pytest
from bs4 import BeautifulSoup

CONF = """\
    extensions = ["myst_parser", "literate.weave"]
    root_doc = "chapters/a"
    exclude_patterns = ["_build"]
    """
NAMES = """\
    from contextlib import contextmanager
    from types import SimpleNamespace

    _sources = []

    @contextmanager
    def collect_sources():
        _sources.clear()
        yield _sources

    def weighed(kilograms):
        _sources.append(SimpleNamespace(kind="measured", text="on the kitchen scales"))
        return kilograms

    CONDITIONS = {"moon": ("a moon", lambda: None)}
    """
PAGE = """\
    # Page

    ```{code-block} python
    :name: library
    :tangle: tiny/lib.py
    :requires: moon
    def half(x):
        <<divide it>>
    ```

    ```{code-block} python
    :fragment: divide it
    return x / 2
    ```

    ```{code-block} python
    :name: alone
    :requires: moon
    assert half(2) == 1
    ```

    Computed {num}`1 / 3 -> .2f`, weighed {num}`weighed(2) -> d`.

    ```{code-block} python
    :name: line
    :figure: A line that rises.
    :alt: A straight line through the origin.
    from matplotlib.figure import Figure
    figure = Figure()
    figure.subplots().plot([0, 1], color="#010203")
    ```
    """


class Woven:
    def __init__(self, small, page=PAGE, conf=CONF):
        small.write(
            "pyproject.toml", '[tool.literate]\nnamespace = "names"\nconditions = "names"\n'
        )
        small.write("code/names.py", NAMES)
        small.write("conf.py", conf)
        small.page(page)
        self.base = small.base
        self.done = small.run(
            "sphinx", "-q", "-W", "--keep-going", "-b", "html", ".", "_build/html"
        )

    def html(self, name="chapters/a.html"):
        return BeautifulSoup((self.base / "_build/html" / name).read_text(), "html.parser")


@pytest.fixture
def woven(small):
    return Woven(small)


def test_the_page_says_which_file_a_block_goes_to_and_the_file_says_where_from(woven):
    assert woven.done.returncode == 0, woven.done.stderr
    link = woven.html().select_one("a.tangled-file")
    assert link.text == "tiny/lib.py"
    target, _, anchor = link["href"].partition("#")
    file_page = woven.html("chapters/" + target)
    back = file_page.find(id=anchor).select_one("a")
    home, _, name = back["href"].partition("#")
    assert home.endswith("chapters/a.html") and woven.html().find(id=name) is not None
    assert "return x / 2" in file_page.text


def test_fragments_are_linked_both_ways(woven):
    page = woven.html()
    reference = page.select_one("a.fragment-ref")
    assert reference.text == "⟨divide it⟩"
    fragment = page.find(id=reference["href"][1:])
    assert "return x / 2" in fragment.text
    (user,) = [a for a in fragment.select("a.reference") if a.text == "library"]
    assert page.find(id=user["href"][1:]).select_one("a.fragment-ref") is reference


def test_a_condition_is_a_visible_mark(woven):
    assert [mark.text for mark in woven.html().select(".block-mark")] == ["needs a moon"] * 2


def test_numbers_show_their_kind_and_their_source(woven):
    computed, weighed = woven.html().select("span.num")
    assert computed.text == "0.33" and "num-computed" in computed["class"]
    assert "title" not in computed.attrs
    assert weighed.text == "2" and "num-measured" in weighed["class"]
    assert weighed["title"] == "Measured: on the kitchen scales"


def test_a_figure_is_inlined_described_and_follows_the_page_colour(woven):
    figure = woven.html().select_one("figure")
    svg = figure.select_one("svg")
    assert svg["role"] == "img" and svg["aria-label"] == "A straight line through the origin."
    assert "currentColor" in str(svg) and "#010203" not in str(svg)
    assert figure["id"] == "fig-line" and "A line that rises." in figure.text


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("1 / 3", "one / 3", "chapters/a.md:22: WARNING: {num}`one / 3 -> .2f`: NameError"),
        ("<<divide it>>", "<<divide>>", "chapters/a.md:8: WARNING: no fragment is called"),
        (":requires: moon\n    assert", ":requires: sun\n    assert", "chapters/a.md:16: WARNING: no condition"),
        ("figure = Figure()", "figure = Fig()", "chapters/a.md:24: WARNING: figure line: NameError"),
        (":name: alone", ":nmae: alone", "chapters/a.md:16: WARNING: unknown option :nmae:"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_page_fails_its_build(small, old, new, expected):
    assert PAGE.count(old) == 1
    woven = Woven(small, PAGE.replace(old, new))
    assert woven.done.returncode == 1
    assert expected in woven.done.stderr, woven.done.stderr


def test_a_page_outside_the_sources_cannot_show_untested_code(small):
    small.write("loose.md", "# Loose\n\n```{code-block} python\nx = 1\n```\n")
    woven = Woven(small, PAGE + "\n\n    ```{toctree}\n    ../loose\n    ```\n")
    assert woven.done.returncode == 1
    assert "is not among the book's sources" in woven.done.stderr


def test_a_setting_that_parts_page_and_tests_fails_the_build(small):
    conf = CONF.rstrip() + "\n    myst_disable_syntax = [\"fence\"]\n"
    done = Woven(small, PAGE, conf).done
    assert done.returncode == 1
    assert "chapters/a.md:3: WARNING: the tests read a block here" in done.stderr


def test_a_fragment_may_have_any_name(small):
    page = PAGE.replace("divide it", "x & \"y\" z'")
    woven = Woven(small, page)
    assert woven.done.returncode == 0, woven.done.stderr
    assert woven.html().select_one("a.fragment-ref").text == "⟨x & \"y\" z'⟩"


def test_two_builds_give_the_same_bytes(small, tmp_path_factory):
    first = Woven(small)
    before = {p.name: p.read_bytes() for p in (first.base / "_build/html").rglob("*.html")}
    small.run("sphinx", "-q", "-E", "-a", "-b", "html", ".", "_build/html")
    after = {p.name: p.read_bytes() for p in (first.base / "_build/html").rglob("*.html")}
    assert before == after
