"""Every term leads somewhere, every entry is reached, and all have one form.

No build is needed: the pages are read with the harness's own settings and parser. What
Sphinx does with a `{term}` is followed here: the case of its letters does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from markdown_it.renderer import RendererHTML
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser

from literate.config import Config, load
from literate.errors import Problem
from literate.reader import read
from literate.records import Page

ROOT = Path(__file__).parent.parent
TERM = re.compile(r"\{term\}(`+)(.+?)\1", re.DOTALL)
EXPLICIT = re.compile(r".*<(.+)>", re.DOTALL)
COMING = re.compile(r"Coming in chapter (\d)")
KEY_TERMS = re.compile(r"^\*\*Key terms\.\*\*(.*?)\n\n", re.DOTALL | re.MULTILINE)
ROLE = re.compile(r"\{\w+(?::\w)?\}(`+).*?\1|(`+).*?\2|\$[^$]*\$")
QUANTITY = re.compile(
    r"(?<![\w.])\d[\d,.]*\s?(?:[kMGTP]?(?:FLOP|OP)(?:/s|/B)?|[kMGTP]i?B(?:/s)?|B/s|Gbit/s"
    r"|[nµm]s|s|%|[kMG]?Hz|W|J)(?![\w-])"
)
#: Quantities that are what the word means, not a result.
DEFINITIONS = {"1 TB", "1 TiB", "400 Gbit/s"}
#: Words that a reader meets next, whatever the chapters use.
NEXT = """
occupancy; coalescing; bank conflict; CTA; wgmma; TMA; online softmax; graph break; mesh;
all-reduce; machine balance; GDDR; structured sparsity; sparsity; speculative decoding;
prefix cache; HBM; NVLink; warp; roofline; arithmetic intensity; ridge point; tensor core;
register spill; L2 cache; split-K; KV cache; GQA; MQA; MLA; MoE; TTFT; TPOT; tensor parallelism;
pipeline parallelism; data parallelism; expert parallelism; paged attention; continuous batching;
quantisation; all-gather; reduce-scatter; all-to-all; sharding; PartitionSpec; GSPMD; NVTX;
Nsight Systems; Nsight Compute; TorchDynamo; Inductor; guard; CUDA graph; launch overhead; PTX;
SASS; tensor memory; thread block cluster; persistent kernel; swizzle; double buffering;
Little's law; wave quantisation; Vera Rubin / Rubin GPU; chunked prefill; disaggregated serving
"""

FIRST_USE = re.compile(r"First used in \[[^\]]*\]\(\.\./([^)#]+)")


@dataclass(frozen=True)
class Entry:
    """One entry of a glossary page: its names, and the lines that say what they mean."""

    path: str
    line: int
    names: tuple[str, ...]
    definition: tuple[str, ...]

    def problem(self, message: str) -> Problem:
        return Problem(self.path, self.line, message)

    @property
    def keys(self) -> set[str]:
        return {key(name) for name in self.names}

    @property
    def paragraphs(self) -> list[str]:
        return [" ".join(p.split()) for p in "\n".join(self.definition).split("\n\n")]


@dataclass(frozen=True)
class Link:
    """A `{term}` role: where it stands and which entry it asks for."""

    path: str
    line: int
    target: str


def key(name: str) -> str:
    """Names that Sphinx takes for the same."""
    return " ".join(name.split()).casefold()


def order(name: str) -> str:
    """What an entry is sorted by: a hyphen counts as a space, case and code not at all."""
    return key(name).replace("-", " ").replace("`", "")


def entries(page: Page, config: Config) -> Iterator[Entry]:
    settings = MdParserConfig(enable_extensions=set(config.extensions))
    for token in create_md_parser(settings, RendererHTML).parse(page.source):
        if token.type in ("fence", "colon_fence") and token.info.startswith("{glossary}"):
            yield from _entries(page.path, token.map[0] + 2, token.content.split("\n"))


def _entries(path: str, first: int, lines: list[str]) -> Iterator[Entry]:
    names: list[str] = []
    definition: list[str] = []
    start = first
    for number, line in enumerate([*lines, "end"], first):
        if line[:1].strip() and definition:
            yield Entry(path, start, tuple(names), tuple("\n".join(definition).strip().split("\n")))
            names, definition = [], []
        if line[:1].strip():
            start = number if not names else start
            names.append(line)
        elif names:
            definition.append(line.strip())


def links(page: Page) -> Iterator[Link]:
    """The terms in a page's prose; what its code says is not a link."""
    lines = page.source.split("\n")
    for block in page.blocks:
        lines[block.line - 1 : block.end_line] = [""] * (block.end_line - block.line + 1)
    text = "\n".join(lines)
    for match in TERM.finditer(text):
        explicit = EXPLICIT.fullmatch(match[2])
        target = explicit[1] if explicit else match[2]
        yield Link(page.path, text.count("\n", 0, match.start()) + 1, key(target))


class Glossary:
    """The entries and links of a book, and what is wrong with them."""

    def __init__(self, config: Config) -> None:
        self.pages = [read(file, config) for file in config.pages()]
        self.entries = [e for page in self.pages for e in entries(page, config)]
        self.links = [link for page in self.pages for link in links(page)]
        self.by_name = {k: entry for entry in self.entries for k in entry.keys}

    def unresolved(self) -> Iterator[Problem]:
        for link in self.links:
            if link.target not in self.by_name:
                yield Problem(link.path, link.line, f"no glossary entry {link.target!r}")

    def duplicates(self) -> Iterator[Problem]:
        seen: dict[str, Entry] = {}
        for entry in self.entries:
            for name in entry.names:
                other = seen.setdefault(key(name), entry)
                if other is not entry:
                    yield entry.problem(f"{name!r} is defined at {other.path}:{other.line}")
            if len(entry.keys) < len(entry.names):
                yield entry.problem(f"a name of {entry.names[0]!r} is there twice")

    def unsorted(self) -> Iterator[Problem]:
        for page in self.pages:
            here = [e for e in self.entries if e.path == page.path]
            for before, entry in zip(here, here[1:]):
                if order(before.names[0]) > order(entry.names[0]):
                    yield entry.problem(f"{entry.names[0]!r} belongs before {before.names[0]!r}")

    def unreached(self) -> Iterator[Problem]:
        reached: set[str] = set()
        for link in self.links:
            home = self.by_name.get(link.target)
            if home and not self._inside(home, link):
                reached.add(home.names[0])
        for entry in self.entries:
            if entry.names[0] not in reached:
                yield entry.problem(f"nothing links to {entry.names[0]!r}")

    def _inside(self, entry: Entry, link: Link) -> bool:
        last = entry.line + len(entry.names) + len(entry.definition)
        return link.path == entry.path and entry.line <= link.line < last

    def unfinished(self) -> Iterator[Problem]:
        for entry in self.entries:
            if entry.paragraphs == [""]:
                yield entry.problem(f"{entry.names[0]!r} has no definition")
            elif not all(p.endswith(".") for p in entry.paragraphs):
                yield entry.problem(f"{entry.names[0]!r} must end in a full stop")

    def not_first(self) -> Iterator[Problem]:
        """'First used in chapter 3' is wrong if chapter 2 links to the entry."""
        for entry in self.entries:
            claim = FIRST_USE.search("\n".join(entry.definition))
            for link in self.links if claim else ():
                if link.target not in entry.keys or not _is_chapter(link.path):
                    continue
                if _is_chapter(claim[1]) and _place(link.path) < _place(claim[1]):
                    where = f"{link.path}:{link.line}"
                    yield entry.problem(f"{entry.names[0]!r} is used before, at {where}")

    def stale(self) -> Iterator[Problem]:
        """'Coming in chapter 8' is wrong once chapter 8 is there."""
        there = {_place(page.path)[0] for page in self.pages if _is_chapter(page.path)}
        for entry in self.entries:
            claim = COMING.search(" ".join(entry.definition))
            if claim and int(claim[1]) in there:
                yield entry.problem(f"{entry.names[0]!r} waits for a chapter that is there")

    def not_listed(self) -> Iterator[Problem]:
        """A term that a chapter calls key is used by the time the chapter ends."""
        for page in self.pages:
            line = KEY_TERMS.search(page.source)
            for term in TERM.findall(line[1]) if line and _is_chapter(page.path) else ():
                entry = self.by_name.get(key(term[1]))
                claim = entry and FIRST_USE.search("\n".join(entry.definition))
                if claim and _is_chapter(claim[1]) and _place(claim[1]) > _place(page.path):
                    yield entry.problem(f"{page.path} calls {term[1]!r} a key term before")

    def typed(self) -> Iterator[Problem]:
        """A quantity with a unit is computed or its entry cites a source."""
        for entry in self.entries:
            text = " ".join(entry.definition)
            if "{cite" in text:
                continue
            for match in QUANTITY.finditer(ROLE.sub("", text)):
                if match[0] not in DEFINITIONS:
                    yield entry.problem(f"{match[0]!r} in {entry.names[0]!r} is typed")


def _is_chapter(path: str) -> bool:
    return re.match(r"chapters/\d\d\w?_", path) is not None


def _place(path: str) -> tuple[int, str]:
    """Where a chapter stands: the serving part's first closes the arc, as number 9."""
    return (9 if "/05_serving/" in path else int(path.partition("/")[2][:2]), path)


CHECKS = (
    "unresolved", "duplicates", "unsorted", "unreached", "unfinished", "not_first",
    "stale", "not_listed", "typed",
)


@pytest.fixture(scope="module")
def glossary() -> Glossary:
    return Glossary(load(ROOT))


@pytest.mark.parametrize("check", CHECKS)
def test_the_books_glossary(glossary, check):
    problems = [str(problem) for problem in getattr(glossary, check)()]
    assert not problems, "\n" + "\n".join(problems)


@pytest.mark.parametrize("word", [" ".join(word.split()) for word in NEXT.split(";")])
def test_what_a_reader_meets_next_is_there(glossary, word):
    assert key(word) in glossary.by_name


def test_the_glossary_is_found(glossary):
    assert len(glossary.entries) >= 160
    assert {link.path for link in glossary.links} >= {"chapters/index.md"}


GOOD = """\
# Words

:::{glossary}
cache
caches
  A cache is a near memory.

  See {term}`warp`.

warp
  A warp is 32 threads. See {term}`Caches`.
:::
"""


@pytest.fixture
def words(small):
    """A small book with a glossary; call it with the glossary's text."""
    pyproject = small.base / "pyproject.toml"
    pyproject.write_text(pyproject.read_text() + 'sources = ["chapters", "glossary"]\n')

    def glossary(text: str, chapter: str = "# One\n") -> Glossary:
        small.page(chapter, "01_a.md")
        small.write("glossary/a.md", text)
        return Glossary(load(small.base))

    return glossary


WARP = "  A warp is 32 threads. See {term}`Caches`.\n"
FIRST_IN_2 = "32 threads. First used in [chapter 2](../chapters/02_b.md)."


@pytest.mark.parametrize(
    ("check", "old", "new", "expected"),
    [
        ("unresolved", "{term}`warp`", "{term}`wrap`", "a.md:8: no glossary entry 'wrap'"),
        ("unresolved", "# Words", "# A {term}`b\nc <wrap>`", "a.md:1: no glossary entry 'wrap'"),
        ("unresolved", "near", "{term}``a\n  b``", "a.md:6: no glossary entry 'a b'"),
        ("duplicates", "warp\n", "warp\nCaches\n", "a.md:10: 'Caches' is defined at"),
        ("duplicates", "caches\n", "Cache\n", "a.md:4: a name of 'cache' is there twice"),
        ("unsorted", "warp\n", "a warp\nwarp\n", "a.md:10: 'a warp' belongs before 'cache'"),
        ("unreached", "See {term}`warp`", "See it", "a.md:10: nothing links to 'warp'"),
        ("unreached", "See {term}`Caches`", "See {term}`warp`", "a.md:4: nothing links to 'cache'"),
        ("unfinished", "memory.", "memory", "a.md:4: 'cache' must end in a full stop"),
        ("unfinished", "`Caches`.", "`Caches`", "a.md:10: 'warp' must end in a full stop"),
        ("unfinished", WARP, "", "a.md:10: 'warp' has no definition"),
        ("not_first", "32 threads.", FIRST_IN_2, "a.md:10: 'warp' is used before, at chapters/01_"),
        ("stale", "See {term}`w", "Coming in chapter 1. {term}`w", "a.md:4: 'cache' waits for"),
        ("typed", "32 threads", "32 threads of 4 kB", "a.md:10: '4 kB' in 'warp' is typed"),
        ("not_listed", "32 threads.", FIRST_IN_2, "a.md:10: chapters/01_a.md calls 'warp' a key"),
    ],
)
def test_a_fault_is_found_where_it_is(words, check, old, new, expected):
    chapter = "# One\n"
    if check in ("not_first", "not_listed"):
        chapter += "\n**Key terms.** {term}`warp`\n\nMore.\n"
    good, bad = words(GOOD, chapter), GOOD.replace(old, new)
    assert len(good.entries) == 2 and not list(getattr(good, check)())
    assert bad != GOOD
    (problem, *_) = getattr(words(bad, chapter), check)()
    assert str(problem).startswith(f"glossary/{expected}")


def test_code_holds_no_links(words):
    chapter = "# One\n\n```{code-block} text\n{term}`nowhere`\n```\n\nNor `{term}` alone.\n"
    assert not list(words(GOOD, chapter).unresolved())
