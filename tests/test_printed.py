"""The numbers that pages print, as agreed to: a change is red until it is looked at."""

from __future__ import annotations

import json

import pytest

from literate.cli import main

PAGE = """\
    # Page

    Half of six is {num}`6 / 2 -> .1f`,
    and a third is {num}`6 / 3 -> .1f`.
    """


@pytest.fixture
def agreed(small):
    """A book of one page whose two numbers somebody has looked at."""
    small.write("pyproject.toml", '[tool.literate]\nroot = "code"\nprinted = "numbers.json"\n')
    small.page(PAGE)
    assert literate(small) == 0
    return small


def literate(small, *arguments: str) -> int:
    return main(["--book", str(small.base), "numbers", *arguments])


def kept(small):
    return json.loads((small.base / "numbers.json").read_text())


def test_they_are_kept_in_reading_order(agreed, capsys):
    assert kept(agreed) == {"chapters/a.md": ["3.0", "2.0"]}
    capsys.readouterr()
    assert literate(agreed, "--check") == 0
    assert "1 pages read as agreed to" in capsys.readouterr().out


def test_a_page_as_agreed_passes(agreed):
    assert agreed.prove().returncode == 0


@pytest.mark.parametrize("old, new, said", [
    ("6 / 3", "6 * 3", "4: {num}`6 * 3 -> .1f` prints '18.0'; the book agreed on '2.0'"),
    ("6 / 2 -> .1f", "6 / 2 -> .2f", "3: {num}`6 / 2 -> .2f` prints '3.00'; the book agreed on '3.0'"),
    ("is {num}`6 / 2 -> .1f`,", "is,", "4: the book agreed on '3.0' about here, and no number prints it"),
    ("is {num}", "is {num}`7 -> d` or {num}", "3: {num}`7 -> d` prints '7', which nobody has agreed to yet"),
])  # fmt: skip
def test_a_number_that_reads_otherwise_is_named_with_its_line(agreed, old, new, said, capsys):
    agreed.page(PAGE.replace(old, new, 1))
    before = kept(agreed)
    assert literate(agreed, "--check") == 1
    assert f"chapters/a.md:{said}" in capsys.readouterr().out
    assert kept(agreed) == before
    assert literate(agreed) == 0
    assert literate(agreed, "--check") == 0


def test_its_page_is_red_there(agreed):
    agreed.page(PAGE.replace("6 / 3", "6 * 3"))
    done = agreed.prove()
    assert done.returncode == 1
    assert "chapters/a.md:4: {num}`6 * 3 -> .1f` prints '18.0'; the book agreed on '2.0'" in done.stdout


def test_a_new_page_is_red_until_somebody_has_looked(agreed):
    agreed.page("# New\n\nIt is {num}`1 + 1 -> d`.\n", "new.md")
    done = agreed.prove("chapters/new.md")
    assert "chapters/new.md:3: {num}`1 + 1 -> d` prints '2', which nobody has agreed to yet" in done.stdout


def test_only_the_pages_named_are_agreed_to_and_a_page_that_is_gone_is_forgotten(agreed):
    agreed.page("# New\n\nIt is {num}`1 + 1 -> d`.\n", "new.md")
    agreed.page(PAGE.replace("6 / 3", "6 * 3"))
    assert literate(agreed, str(agreed.base / "chapters/new.md")) == 0
    assert kept(agreed) == {"chapters/a.md": ["3.0", "2.0"], "chapters/new.md": ["2"]}
    (agreed.base / "chapters/new.md").unlink()
    assert literate(agreed) == 0
    assert kept(agreed) == {"chapters/a.md": ["3.0", "18.0"]}


def test_a_page_named_wrongly_is_refused(agreed, capsys):
    assert literate(agreed, "chapters/b.md") == 1
    assert "chapters/b.md" in capsys.readouterr().err


def test_a_damaged_file_says_where_and_what_to_do(agreed, capsys):
    (agreed.base / "numbers.json").write_text("<<<<<<< ours\n")
    assert literate(agreed) == 1
    assert "numbers.json:1: no JSON" in capsys.readouterr().err


def test_a_book_that_keeps_none_says_so(small, capsys):
    small.page(PAGE)
    assert literate(small) == 1
    assert "this book keeps no numbers" in capsys.readouterr().err
