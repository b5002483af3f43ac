"""Tangled files: deterministic, written only when changed, never over somebody's work."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys

import pytest
from conftest import ROOT

from literate.book import untouched
from literate.errors import BookError
from literate.tangle import check, tangle

PAGE = """\
    # Page

    ```{code-block} python
    :name: top
    :tangle: tiny/a.py
    def f(x):
        <<double it>>
    ```

    ```{code-block} python
    :fragment: double it
    y = 2 * x

    return y
    ```

    ```{code-block} python
    :tangle: tiny/a.py
    def g(x):
        return f(f(x))
    ```
    """
BODY = "def f(x):\n    y = 2 * x\n\n    return y\n\n\ndef g(x):\n    return f(f(x))\n"


@pytest.fixture
def tangled(small):
    small.page(PAGE)
    tangle(small.book())
    return small


def target(book):
    return book.base / "code/tiny/a.py"


def test_fragments_are_pulled_in_with_their_indentation(tangled):
    header, body = target(tangled).read_text().split("\n\n", 1)
    assert body == BODY
    assert header.startswith("# Tangled from chapters/a.md: edit it there")


def test_every_line_knows_where_it_was_written(tangled):
    page = (tangled.base / "chapters/a.md").read_text().split("\n")
    (file,) = tangled.book().files.values()
    for number, line in enumerate(file.text.split("\n"), 1):
        origin = file.origin(number)
        if origin:
            assert page[origin.page_line - 1].strip() == line.strip()
    assert file.origin(5).page_line == 12


def test_a_second_tangle_touches_nothing(tangled):
    before = target(tangled).stat().st_mtime_ns
    assert tangle(tangled.book()) == []
    assert target(tangled).stat().st_mtime_ns == before


def test_a_changed_chapter_is_written_and_nothing_else_is_left(tangled):
    tangled.page(PAGE.replace("2 * x", "3 * x"))
    (change,) = tangle(tangled.book())
    assert "3 * x" in target(tangled).read_text() and not change.edited
    assert os.listdir(target(tangled).parent) == ["a.py"]


def test_check_shows_the_chapter_line_and_writes_nothing(tangled):
    tangled.page(PAGE.replace("2 * x", "3 * x"))
    done = tangled.run("literate", "tangle", "--check")
    assert done.returncode == 1
    assert "chapters/a.md:12" in done.stdout and "+    y = 3 * x" in done.stdout
    assert "2 * x" in target(tangled).read_text()
    assert tangled.run("literate", "check").returncode == 1


def test_a_hand_edited_file_is_never_lost(tangled):
    edited = target(tangled).read_text().replace("2 * x", "x + x")
    target(tangled).write_text(edited)
    tangled.page(PAGE.replace("f(f(x))", "f(x)"))
    done = tangled.run("literate", "tangle")
    assert done.returncode == 1
    assert "changed by hand" in done.stderr and "chapters/a.md:12" in done.stderr
    assert target(tangled).read_text() == edited
    assert tangled.run("literate", "tangle", "--force").returncode == 0
    assert "2 * x" in target(tangled).read_text()


def test_an_edit_that_the_chapter_now_has_too_is_fine(tangled):
    target(tangled).write_text(target(tangled).read_text().replace("2 * x", "x + x"))
    tangled.page(PAGE.replace("2 * x", "x + x"))
    with pytest.raises(BookError, match="changed by hand"):
        tangle(tangled.book())  # the header still says otherwise
    tangle(tangled.book(), force=True)
    assert check(tangled.book()) == []


def test_a_file_that_no_tangle_wrote_is_not_overwritten(small):
    small.page(PAGE)
    mine = small.write("code/tiny/a.py", "mine = 1\n")
    with pytest.raises(BookError, match="was not tangled"):
        tangle(small.book())
    assert mine.read_text() == "mine = 1\n"


def test_a_file_that_no_chapter_has_any_more_goes_unless_edited(tangled):
    tangled.page("# Nothing\n")
    assert [c.path.name for c in tangle(tangled.book())] == ["a.py"]
    assert not target(tangled).exists()
    tangled.page(PAGE)
    tangle(tangled.book())
    target(tangled).write_text(target(tangled).read_text() + "mine = 1\n")
    tangled.page("# Nothing\n")
    with pytest.raises(BookError, match="no chapter has it"):
        tangle(tangled.book())
    assert "mine" in target(tangled).read_text()


def test_a_link_cannot_lead_out_of_the_tree(small, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (small.base / "code/tiny").symlink_to(outside)
    small.page(PAGE)
    with pytest.raises(BookError, match="leads out of the code root"):
        tangle(small.book())
    assert os.listdir(outside) == []


def test_nothing_is_written_when_one_file_cannot_be(tangled):
    tangled.page("```{code-block} python\n:tangle: other.py\nx = 1\n```\n", "b.md")
    target(tangled).write_text("mine\n")
    with pytest.raises(BookError):
        tangle(tangled.book())
    assert not (tangled.base / "code/other.py").exists()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("<<double it>>", "<<dubble it>>", "chapters/a.md:7: no fragment is called <<dubble it>>"),
        ("return f(f(x))", "<<double it>>\n    # fine", None),
        ("y = 2 * x", "<<double it>>", "chapters/a.md:12: fragment goes round in a circle"),
        (":fragment: double it", ":fragment: other", "chapters/a.md:10: fragment <<other>> is never used"),
    ],
)
def test_broken_fragments_name_their_line(small, old, new, expected):
    small.page(PAGE.replace(old, new))
    problems = [str(p) for p in small.book().problems]
    if expected is None:
        assert problems == []
    else:
        assert any(p.startswith(expected) for p in problems), problems
        done = small.run("literate", "tangle")
        assert done.returncode == 1 and expected in done.stderr


def test_a_fragment_is_defined_once(small):
    small.page(PAGE + "\n    ```{code-block} python\n    :fragment: double it\n    pass\n    ```\n")
    assert any("is defined at line 10" in str(p) for p in small.book().problems)


def test_a_file_belongs_to_one_chapter(small):
    small.page(PAGE)
    small.page(PAGE.replace("top", "top-2"), "b.md")
    assert [str(p) for p in small.book().problems] == [
        "chapters/b.md:3: tiny/a.py belongs to chapters/a.md; one file, one chapter"
    ]


def test_list_and_misuse_have_their_exit_statuses(tangled):
    done = tangled.run("literate", "list")
    assert done.returncode == 0
    assert "chapters/a.md:3: python :name: top :tangle: tiny/a.py" in done.stdout
    assert tangled.run("literate", "tangel").returncode == 2
    done = tangled.run("literate", "--book", "/", "list")
    assert done.returncode == 1 and "no pyproject.toml" in done.stderr


BLOCK = "```{{code-block}} python\n:tangle: {}\n{}\n```\n\n"
FRAGMENT = "```{{code-block}} python\n:fragment: {}\n{}\n```\n\n"


@pytest.mark.parametrize("line", [0, 2])
def test_an_edit_in_the_header_is_an_edit(tangled, line):
    lines = target(tangled).read_text().split("\n")
    lines[line] += "# mine"
    target(tangled).write_text("\n".join(lines))
    with pytest.raises(BookError, match="changed by hand"):
        tangle(tangled.book())


def test_other_line_ends_are_shown(tangled):
    target(tangled).write_bytes(target(tangled).read_bytes().replace(b"\n", b"\r\n"))
    with pytest.raises(BookError, match="␍"):
        tangle(tangled.book())


def test_fragments_that_only_use_each_other_are_in_no_file(small):
    small.page(BLOCK.format("a.py", "x = 1") + FRAGMENT.format("a", "<<b>>") + FRAGMENT.format("b", "<<a>>"))
    assert [str(p) for p in small.book().problems] == [
        "chapters/a.md:6: fragment <<a>> is never used: no file has it",
        "chapters/a.md:11: fragment <<b>> is never used: no file has it",
    ]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("a-b.py", "a name that Python can import"),
        ("a.txt", "Python in a.txt would never run"),
        ("a.cu", "in which '#' starts a comment"),
        ("__init__.py", "no package itself"),
        ('"a\\0.py"', "a path below the code root"),
    ],
)
def test_a_file_that_could_not_be_run_is_a_problem(small, target, says):
    small.page(BLOCK.format(target, "x = 1"))
    (problem,) = small.book().problems
    assert str(problem).startswith("chapters/a.md:1: ") and says in problem.message


def test_a_file_in_the_way_is_reported_at_the_chapter(small):
    small.page(BLOCK.format("a.py", "x = 1"))
    (small.base / "code/a.py").mkdir()
    with pytest.raises(BookError, match="^chapters/a.md:1: code/a.py: Is a directory"):
        tangle(small.book())
    small.page(BLOCK.format("p/a.py", "x = 1") + BLOCK.format("p", "x").replace("python", "text"))
    assert [str(p) for p in small.book().problems] == [
        "chapters/a.md:1: p/a.py: p is a file already, it cannot be a folder"
    ]


def test_a_book_without_its_pages_does_not_give_up_its_files(tangled):
    (tangled.base / "chapters").rename(tangled.base / "chapter")
    done = tangled.run("literate", "tangle")
    assert done.returncode == 1 and "pyproject.toml:1: " in done.stderr and "'chapters'" in done.stderr
    assert target(tangled).exists()


def test_a_link_beside_a_tangled_file_is_left_alone(tangled):
    link = target(tangled).with_name("b.py")
    link.symlink_to("a.py")
    assert tangle(tangled.book()) == [] and link.is_symlink()


def test_a_killed_tangle_leaves_whole_files_and_the_next_one_finishes(small):
    for number in range(40):
        small.page(BLOCK.format(f"m{number}.py", "x = 1"), f"p{number}.md")
    code = small.base / "code"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "code")}
    command = [sys.executable, "-m", "literate", "tangle"]
    tangling = subprocess.Popen(command, cwd=small.base, env=environment, stdout=subprocess.DEVNULL)
    while tangling.poll() is None and len(os.listdir(code)) < 5:
        pass
    tangling.kill()
    tangling.wait()
    (code / ".tangling-half").write_text("# Tangled from")  # as if killed while it wrote
    assert all(untouched(path.read_text()) for path in code.glob("*.py"))
    tangle(small.book())
    assert sorted(os.listdir(code)) == sorted(f"m{n}.py" for n in range(40))


def test_bytecode_of_the_old_file_is_forgotten(tangled):
    cached = tangled.base / "code/tiny/__pycache__"
    py_compile.compile(str(target(tangled)))
    assert os.listdir(cached)
    tangled.page(PAGE.replace("2 * x", "3 * x"))
    tangle(tangled.book())
    assert not os.listdir(cached)
