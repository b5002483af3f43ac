"""Remembered pages: the same as pages that are read, or they are not used."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

import literate.reader
from literate import cache
from literate.book import Book
from literate.config import load

PAGE = "# A\n\n```{code-block} python\n:tangle: a.py\nx = 1\n```\n\nOf {num}`1 -> d`.\n"
NEEDY = "```{code-block} python\n:requires: moon\nx = 1\n```\n"


@pytest.fixture
def reads(monkeypatch) -> list[str]:
    """The names of the pages that were read, and not remembered."""
    names: list[str] = []
    plain = literate.reader.read

    def read(file, *rest):
        names.append(file.name)
        return plain(file, *rest)

    monkeypatch.setattr(literate.reader, "read", read)
    return names


@pytest.fixture
def kept(small, reads):
    """A book of two pages that are remembered."""
    small.page(PAGE)
    small.page(PAGE.replace("a.py", "b.py"), "b.md")
    assert pages(small) == anew(small)
    reads.clear()
    return small


def pages(small):
    return cache.pages(load(small.base))


def anew(small):
    return Book(load(small.base)).pages


def file(small) -> Path:
    return small.base / "_build/literate" / cache.NAME


def test_only_what_changed_is_read(kept, reads):
    assert pages(kept) and reads == []
    kept.page(PAGE.replace("x = 1", "x = 2"))
    assert pages(kept)[0].blocks[0].text == "x = 2" and reads == ["a.md"]
    kept.page(PAGE)
    assert pages(kept)[0].blocks[0].text == "x = 1"
    reads.clear()
    (kept.base / "chapters/b.md").rename(kept.base / "chapters/c.md")
    assert [page.path for page in pages(kept)] == ["chapters/a.md", "chapters/c.md"]
    assert reads == ["c.md"]


def test_what_is_hashed_is_what_is_read(small, monkeypatch):
    """The page is saved once more while it is being read."""
    small.page(PAGE)
    plain = literate.reader.read

    def read(file, *rest):
        small.page(PAGE.replace("x = 1", "x = 2"))
        return plain(file, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(literate.reader, "read", read)
        pages(small)
    for text in ("x = 2", "x = 1"):
        small.page(PAGE.replace("x = 1", text))
        assert pages(small)[0].blocks[0].text == text


def test_a_page_with_a_problem_is_read_each_time(small, reads):
    small.page(PAGE + "```py\n```\n")
    for _ in range(2):
        assert pages(small)[0].problems
    assert reads == ["a.md", "a.md"]


def test_a_condition_that_is_gone_is_noticed(small, reads):
    small.write("pyproject.toml", '[tool.literate]\nconditions = "cond_of_cache"\n')
    module = small.write("code/cond_of_cache.py", "CONDITIONS = {'moon': ('a moon', lambda: True)}\n")
    small.page(NEEDY)
    done = small.run("literate", "list")
    assert done.returncode == 0, done.stderr
    module.write_text("CONDITIONS = {}\n")
    done = small.run("literate", "list")
    assert done.returncode == 1 and "no condition is called 'moon'" in done.stderr


@pytest.mark.parametrize(
    "settings", ['extensions = ["dollarmath"]', 'root = "src"', "timeout = 3"], ids=lambda s: s.split()[0]
)
def test_other_settings_are_another_book(kept, reads, settings):
    kept.write("pyproject.toml", f"[tool.literate]\n{settings}\n")
    assert pages(kept) == anew(kept) and len(reads) == 4


def test_another_parser_reads_everything_anew(kept, reads, monkeypatch):
    before = cache._stamp(load(kept.base))
    with monkeypatch.context() as patched:
        patched.setattr(cache, "_installed", lambda folder: ["myst_parser-0.0.dist-info"])
        assert cache._stamp(load(kept.base)) != before
        pages(kept)
        assert reads == ["a.md", "b.md"]
    with monkeypatch.context() as patched:
        plain = os.stat
        touched = os.path.join("myst_parser", "parsers", "mdit.py")

        def stat(path, **options):
            found = plain(path, **options)
            if not str(path).endswith(touched):
                return found
            return os.stat_result((*found[:6], found.st_size + 1, *found[7:10]))

        patched.setattr(cache.os, "stat", stat)
        assert cache._stamp(load(kept.base)) != before
    with monkeypatch.context() as patched:  # one that is not to be found: nothing is kept
        patched.setattr(cache, "find_spec", lambda name: None)
        assert cache._stamp(load(kept.base)) == ""
        assert pages(kept) == anew(kept)


def test_no_damage_to_the_file_reaches_a_page(kept, reads):
    whole = file(kept).read_bytes()
    right = anew(kept)
    for at in [*range(0, 130), *range(130, len(whole), 37)]:
        file(kept).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert cache._load(file(kept), cache._stamp(load(kept.base))) == {}, at
    for part in (b"", whole[:64], whole[:-1], whole + b"."):
        file(kept).write_bytes(part)
        reads.clear()
        assert pages(kept) == right and reads == ["a.md", "b.md"]
    assert pages(kept) == right


class Trap:
    def __reduce__(self):
        return os.mkdir, (str(self.place),)


def test_a_file_that_would_run_something_is_not_unpickled(kept, tmp_path):
    trap = Trap()
    trap.place = tmp_path / "sprung"
    body = pickle.dumps({"a": trap}, protocol=5)
    stamp = cache._stamp(load(kept.base))
    file(kept).write_bytes((stamp + cache._hash(body)).encode() + body)
    assert pages(kept) == anew(kept) and not trap.place.exists()


def test_a_folder_that_cannot_be_written_costs_only_time(small, reads):
    small.page(PAGE)
    small.write("_build", "a file where the folder would be\n")
    for _ in range(2):
        assert pages(small) == anew(small)
    small.write("pyproject.toml", '[tool.literate]\ncache = ""\n')
    assert pages(small) == anew(small)


def test_many_processes_at_once(small):
    """Each writes the file whole; whoever is last, it is right."""
    for n in range(8):
        small.page(PAGE.replace("a.py", f"p{n}.py"), f"p{n}.md")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "code")}
    command = [sys.executable, "-m", "literate", "list"]
    running = [
        subprocess.Popen(command, cwd=small.base, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    said = {process.communicate()[0] for process in running}
    assert len(said) == 1 and not any(process.returncode for process in running)
    assert pages(small) == anew(small)
    assert os.listdir(file(small).parent) == [cache.NAME]


def test_the_book_itself_is_remembered_as_it_is_read():
    config = load(ROOT)
    right = Book(config).pages
    body = pickle.dumps(right, protocol=5)
    assert cache._Unpickler(io.BytesIO(body)).load() == right
