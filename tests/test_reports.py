"""Reports of proof: written by the tests, shown by the pages, never of another text."""

from __future__ import annotations

import json

import pytest
from bs4 import BeautifulSoup
from conftest import ROOT

from literate.config import load

PAGE = """\
    # Page

    ```{code-block} python
    :name: library
    :tangle: tiny/lib.py
    def half(x):
        <<divide>>
    ```

    ```{code-block} python
    :name: divide
    :fragment: divide
    return x / 2
    ```

    ```{code-block} python
    :name: lunar
    :requires: moon
    assert False
    ```

    ```{code-block} python
    :name: wrong
    assert half(2) == 3
    ```
    """
CONF = """\
    extensions = ["myst_parser", "literate.weave"]
    root_doc = "chapters/a"
    exclude_patterns = ["_build"]
    """


@pytest.fixture
def reported(small):
    small.write(
        "pyproject.toml",
        '[tool.literate]\nconditions = "names"\nreports = ["Here: here.json", "There: there.json"]\n',
    )
    small.write("code/names.py", 'CONDITIONS = {"moon": ("a moon", lambda: None)}\n')
    small.write("conf.py", CONF)
    small.page(PAGE)
    assert small.run("literate", "tangle").returncode == 0
    small.prove("--literate-report", "here.json", "chapters")
    return small


def report(small) -> dict:
    return json.loads((small.base / "here.json").read_text())


def marks(small) -> dict[str, str]:
    done = small.run("sphinx", "-q", "-b", "html", ".", "_build")
    assert done.returncode == 0, done.stderr
    page = BeautifulSoup((small.base / "_build/chapters/a.html").read_text(), "html.parser")
    found = page.select(".block-status")
    # A block without a header has its mark above the box that bears its name.
    homes = ((m.find_parent("div", id=True) or m.find_next("div", id=True), m) for m in found)
    return {home["id"]: mark.text for home, mark in homes}


def test_a_report_says_what_happened_to_each_block(reported):
    blocks = report(reported)["blocks"]
    said = {name.split("::")[1]: entry["outcome"] for name, entry in blocks.items()}
    assert said == {"library": "passed", "divide": "passed", "lunar": "skipped", "wrong": "failed"}
    assert "a moon" in blocks["chapters/a.md::lunar"]["reason"]
    (run,) = report(reported)["runs"]
    assert run["conditions"] == {"moon": None} and run["versions"]["python"]


def test_pages_show_the_report_and_only_of_the_same_text(reported):
    shown = marks(reported)
    assert shown["library"].startswith("Here: passed")
    assert shown["divide"].startswith("Here: passed")
    assert shown["lunar"] == "Here: not run"
    # A fragment's new text makes the block that holds it another block.
    reported.page(PAGE.replace("x / 2", "x * 0.5"))
    reported.run("literate", "tangle")
    shown = marks(reported)
    assert shown["library"].startswith("Here: changed since")
    assert shown["divide"].startswith("Here: changed since")


def test_a_run_of_some_blocks_leaves_what_is_known_of_the_others(reported):
    reported.page(PAGE.replace("== 3", "== 1").replace(":name: lunar", ":name: solar"))
    reported.prove("--literate-report", "here.json", "chapters/a.md::wrong")
    blocks = report(reported)["blocks"]
    assert set(blocks) == {f"chapters/a.md::{name}" for name in ("library", "divide", "wrong")}
    assert blocks["chapters/a.md::wrong"]["outcome"] == "passed"
    assert len(report(reported)["runs"]) == 1


def test_reports_are_the_same_when_the_work_is_shared_out(reported):
    alone = report(reported)
    reported.prove("--literate-report", "here.json", "-n", "2", "chapters")
    assert report(reported) == alone


def test_the_book_commits_no_report_of_a_failure():
    named = [ROOT / entry.split(": ")[1] for entry in load(ROOT).reports]
    named = [path for path in named if path.exists()]  # a big machine's may still be to come
    assert named
    for path in named:
        blocks = json.loads(path.read_text("utf-8"))["blocks"]
        assert [name for name, entry in blocks.items() if entry["outcome"] == "failed"] == []
