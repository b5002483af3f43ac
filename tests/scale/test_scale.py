"""A book of many chapters: work grows with it in proportion, and an unchanged page costs none.

What is counted here is work, not seconds: those are in `results.json`, by `benchmark.py`.
BOOK_WHOLE=1 takes a thousand chapters and times them anew.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter

import benchmark
import generated
import pytest

from literate import cache
from literate.book import Book
from literate.config import load
from literate.tangle import tangle

WHOLE = bool(os.environ.get("BOOK_WHOLE"))
FEW, MANY = (100, 1000) if WHOLE else (15, 60)


def calls(work) -> int:
    """How many functions of Python a piece of work calls."""
    counted: Counter[str] = Counter()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, arg: counted.update([event]))
    try:
        work()
    finally:
        sys.setprofile(before)
    return counted["call"]


def test_work_grows_with_the_book_and_no_faster(tmp_path):
    found = {}
    for size in (3, FEW, MANY):  # the first pays for what is done once
        config = load(generated.literate(tmp_path / str(size), size))
        found[size] = calls(lambda: tangle(Book(config)))
        assert len(list((config.code_root / "book").glob("*.py"))) == size
    assert found[MANY] <= 1.1 * found[FEW] * MANY / FEW


def test_collecting_grows_with_the_book_and_no_faster(tmp_path):
    from literate.prove.documents import BookSybil

    found = {}
    for size in (3, FEW, MANY):
        config = load(generated.runnable(tmp_path / str(size), size))

        def collect():
            sybil = BookSybil(Book(config))
            examples = [x for p in config.pages() for x in sybil.parse(p).examples()]
            assert len(examples) == size * (generated.BLOCKS + 1)

        found[size] = calls(collect)
    assert found[MANY] <= 1.1 * found[FEW] * MANY / FEW


def test_one_changed_chapter_is_the_only_one_that_is_read(tmp_path, monkeypatch):
    config = load(generated.literate(tmp_path, FEW))
    tangle(Book(config, cache.pages(config)))
    page = config.pages()[3]
    page.write_text(page.read_text("utf-8").replace("return x", "return 2 * x"), "utf-8")
    reading = []
    plain = cache._part
    monkeypatch.setattr(cache, "_part", lambda todo, c: reading.extend(todo) or plain(todo, c))
    (change,) = tangle(Book(config, cache.pages(config)))
    assert [path for path, _ in reading] == [page] and change.path.name == "c0003.py"


def test_pages_read_by_many_processes_are_the_same_pages(tmp_path, monkeypatch):
    config = load(generated.literate(tmp_path, 20))
    alone = Book(config).pages
    monkeypatch.setattr(cache, "MANY", 2)
    assert cache.pages(config) == alone


def test_the_table_says_what_was_measured():
    found = json.loads(benchmark.RESULTS.read_text("utf-8"))
    assert (benchmark.HERE / "README.md").read_text("utf-8") == benchmark.readme(found)


@pytest.mark.skipif(not WHOLE, reason="BOOK_WHOLE=1 times books of a thousand chapters")
@pytest.mark.timeout(1800)
def test_a_book_of_a_thousand_chapters():
    """Prints the table; only what no busy machine can spoil is asserted."""
    found = benchmark.measure(3, os.environ.get("BOOK_ENTANGLED"))
    print(benchmark.table(found))
    assert found["MB"] < 500
