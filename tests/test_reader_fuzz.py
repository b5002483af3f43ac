"""Generated and mangled pages: no crash, no wrong line, nothing shown that is not read.

The judge is MyST's own reading of the page into a doctree, which knows nothing of the
reader (`plain_reading`). A page that the reader finds nothing wrong with shows exactly the
blocks and numbers that the tests run. Each run is the same and short; BOOK_WHOLE=1 looks
for new pages, a hundred times as many. What was found once lies in `corpus/`.
"""

from __future__ import annotations

import os
import re
import tempfile
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from plain_reading import plain_parser, shown

from literate.book import Book, untouched
from literate.config import Config, load
from literate.myst import parser
from literate.reader import STRAY, WRITTEN, read
from literate.tangle import tangle

ROOT = Path(__file__).parent.parent
CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.md"))
WHOLE = bool(os.environ.get("BOOK_WHOLE"))
CONFIG = Config(
    Path("/book"),
    extensions=(
        "amsmath", "attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath", "fieldlist",
    ),
)  # fmt: skip
FILE = CONFIG.base / "chapters/a.md"
pytestmark = pytest.mark.timeout(3600)


def examples(number: int) -> settings:
    return settings(
        max_examples=number * (100 if WHOLE else 1),
        deadline=None,
        phases=[Phase.generate, Phase.shrink] if WHOLE else [Phase.generate],
        derandomize=not WHOLE,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


# --- pages that are sound, with what they show ----------------------------------------

#: A page in the making: its lines, and of each block that it shows the text.
Piece = tuple[list[str], list[str]]


def code(marker: str, options: str, body: str, number: int) -> Piece:
    text = body.replace("N", str(number))
    lines = [f"{marker}{{code-block}} python", *options.replace("N", str(number)).splitlines()]
    return [*lines, *text.split("\n"), marker], [text]


PROSE = st.sampled_from(
    [
        "Words.", "A {num}`1 -> d` here.", "`code {num}` and *more*", "$a < b$", "# Title",
        "| a |\n| - |\n| b |", "(target)=\n## Two {num}`4 -> d`", "$$\na = b\n$$ (eq)",
        "| a {num}`2 -> d` | b |\n| --- | --- |\n| `{num}` | {num}`3 -> d` |",
        "{#id .c}\nA paragraph.", "[a link {num}`5 -> d`](https://a.b/c) and ![i](b.svg)",
        "*a\n{num}`6\n-> d`*", ":field: value {num}`7 -> d`", "**{num}`8 -> d`**\\\nnext",
        "T\u00e9 \u2014 \U0001f600 {num}`9 -> d`", "+++", "<b>{num}`1 -> d`</b>",
        "\\begin{align}\na\n\\end{align}", "`` ```{code-block} python ``", "% a comment {num}`1 -> d`",
    ]
)  # fmt: skip
CODE = st.builds(
    code,
    st.sampled_from(["```", "~~~", ":::", "::::", "`````", "~~~~~~", ":" * 9, "`" * 12]),
    st.sampled_from(
        ["", ":name: bN", ":name: bN\n\n", "---\nname: bN\ntimeout: 3\n---", ":name: bN   \n:timeout: 2",
         ":caption: of {num}`2 -> d`", "\n"]
    ),
    st.sampled_from(
        ["x = N", "if N:\n    x = '''\n\n;;;\n<<a>>\n'''", "# N\n\tx", "s = N  # <!--",
         "def f():\n    'N'\n\n\n    return '``'", "x = N\n\n\n", "N  # {num}`1 -> d` \\", "'N\u00e9\u200b\U0001f600'"]
    ),
    st.integers(0, 10**9),
)  # fmt: skip


def longest(lines: list[str]) -> int:
    return max([2, *(len(run) for line in lines for run in re.findall(r"`+|:+|~+", line))])


def wrap(kind: str, pieces: list[Piece]) -> Piece:
    lines = [line for piece, _ in pieces for line in [*piece, ""]][:-1]
    while len(lines) > 1 and not lines[0]:
        del lines[0]
    there = [text for _, texts in pieces for text in texts]
    marker = {"`": "`", "~": "~"}.get(kind[:1], ":") * (longest(lines) + 1)
    if kind in ("list", "steps"):
        mark = "- " if kind == "list" else "12) "
        lines = [(mark if not n else " " * len(mark)) + line if line else "" for n, line in enumerate(lines)]
        return ["", *lines, ""], there
    if kind == "quote":
        return [f"> {line}" for line in lines], there
    if kind == "term":
        lines = [(":   " if not n else "    ") + line if line else "" for n, line in enumerate(lines)]
        return ["Term", *lines, ""], there
    if kind == "container":
        return [f"{marker}aside", *lines, marker], there
    if kind == "display":
        ticks = "`" * (longest(lines) + 1)
        return [f"{ticks}markdown", *lines, ticks], []
    if kind == "comment":
        return ["<!--", *(line.replace("-->", "") for line in lines), "-->", ""], []
    return [f"{marker}{{{kind.lstrip('`~')}}}", ":class: c", "", *lines, marker], there


KINDS = [
    "list", "steps", "quote", "term", "container", "display", "comment", "note", "`tip", "~note", "exercise",
]  # fmt: skip
LEAF = st.one_of(CODE, PROSE.map(lambda text: (text.split("\n"), [])))
PIECE = st.recursive(
    LEAF,
    lambda inner: st.builds(wrap, st.sampled_from(KINDS), st.lists(inner, min_size=1, max_size=3)),
    max_leaves=6,
)
PAGE = st.lists(PIECE, min_size=1, max_size=4)


def written(pieces: list[Piece]) -> tuple[str, list[str]]:
    lines, there = [], []
    for piece, texts in pieces:
        lines += [*piece, ""]
        there += texts
    return "\n".join(lines), there


# --- what is promised of any page whatever --------------------------------------------


def page(text: str | bytes):
    return read(FILE, CONFIG, text)


def lines_are_exact(found, text: str) -> None:
    # Such characters end lines for some and not for others; the page is refused for them.
    source = STRAY.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n")).split("\n")
    for block in found.blocks:
        # An unclosed fence takes in the blank line that a parser adds below a page.
        lines = block.text.rstrip().split("\n") if block.text.strip() else []
        for number, line in enumerate(lines, block.code_line):
            assert line.strip() in source[number - 1]
        assert "code-block" in source[block.line - 1].lower()
    for expression in found.expressions:
        assert "{num}`" in source[expression.line - 1]
    for problem in found.problems:
        assert 1 <= problem.line <= len(source) + 1 and problem.path == "chapters/a.md"


def agrees(found) -> None:
    """A page without a problem shows what the reader reads, no more and no less."""
    if found.problems:
        return
    blocks, numbers = shown(found.source, CONFIG.extensions)
    assert [block.text.rstrip("\n") for block in found.blocks] == [b.rstrip("\n") for b in blocks]
    assert sorted(e.text for e in found.expressions) == sorted(numbers)


def tokens_are_the_plain_ones(text: str) -> None:
    """What the reader's parser skips changes no token that a reader of code looks at."""
    quick = parser(CONFIG.extensions).parse(text + "\n")
    plain = plain_parser(CONFIG.extensions).parse(text + "\n")
    assert [_outside(token) for token in quick] == [_outside(token) for token in plain]
    for mine, theirs in zip(quick, plain, strict=True):
        assert _spoken(mine) == _spoken(theirs)
        for child in mine.children or []:
            if child.type in ("myst_role", "code_inline"):
                start, end = child.meta["span"]
                assert "".join(child.content.split()) in "".join(mine.content[start:end].split())


def _outside(token) -> tuple:
    return token.type, token.map, token.info, token.markup, token.nesting, token.content, token.level


def _spoken(token) -> list:
    """The roles of a line, and the code spans in which one is quoted."""
    return [
        (child.type, child.content, child.meta.get("name"))
        for child in token.children or []
        if child.type == "myst_role" or (child.type == "code_inline" and "{" in token.content)
    ]


def holds(text: str) -> None:
    found = page(text)
    lines_are_exact(found, text)
    agrees(found)
    tokens_are_the_plain_ones(found.source)
    book = Book(CONFIG, [found])
    assert all(untouched(file.text) for file in book.files.values())
    again = Book(CONFIG, [page(text)])
    assert {t: f.text for t, f in again.files.items()} == {t: f.text for t, f in book.files.items()}


# --- generated pages ------------------------------------------------------------------


@examples(150)
@given(PAGE)
def test_every_block_that_a_sound_page_shows_is_read(pieces):
    text, there = written(pieces)
    # MyST itself drops one of the blank lines that end a block with options.
    assert [b.text.rstrip("\n") for b in page(text).blocks] == [t.rstrip("\n") for t in there]
    holds(text)


JUNK = st.sampled_from(
    [
        "```", ":::", "~~~", "<!--", "-->", "---", "\0", "\r", "\u2028", "\x0c", "\t", "    ", "{num}`", "`", "$$",
        "> ", "- ", "[^1]: ", "<div>", "```{code-block} python", ":::{note}", "::::", ":tangle: a.py", "<<a>>",
        "\ufeff", "\x0b", "\x85", "\x1c", "\u2029", "\r\n", "\xa0", "\u200b", "\t```", "~~~~{code-block} python",
        "% ", "+++", "1. ", ":   ", "[a]: b\n", "(t)=", "<!-- -->", "</div>", "<pre>", "| - |", "$", "\\", "{", "}",
        "{num}`` 1 -> d ``", "{code}`x`", "```{include} a\n```", "```{eval-rst}\n```", "```python\n```",
        "---\na: b\n---", "```{code-block}", ":name: a", ":::{code-block} python", "[^1]", "![", "](", "&#96;",
    ]
)  # fmt: skip
MANGLES = st.lists(
    st.tuples(
        st.sampled_from(["drop", "twice", "cut", "put", "indent", "swap"]), st.integers(0, 200), JUNK
    ),
    min_size=1,
    max_size=4,
)


def mangle(text: str, faults) -> str:
    lines = text.split("\n")
    for kind, at, junk in faults:
        n = at % len(lines)
        if kind == "drop":
            lines[n : n + 1] = [""] if len(lines) == 1 else []
        elif kind == "twice":
            lines.insert(n, lines[n])
        elif kind == "cut":
            lines[n] = lines[n][: at % 7]
        elif kind == "put":
            lines[n] = lines[n][: at % 5] + junk + lines[n][at % 5 :]
        elif kind == "swap":
            lines[n], lines[-1] = lines[-1], lines[n]
        else:
            lines[n] = junk + lines[n]
    return "\n".join(lines)


@examples(150)
@given(PAGE, MANGLES)
def test_a_mangled_page_never_crashes_and_never_hides_a_block(pieces, faults):
    holds(mangle(written(pieces)[0], faults))


MARKS = st.sampled_from(
    [
        "`", "``", "```", "~~~", ":::", "{code-block} python", "{num}`1 -> d`", "{note}", "\n", "\n\n", "    ", "\t",
        "> ", "- ", "x = 1", "<!--", "-->", "---", "$$", "|", ":", "(", ")", "[", "]", "\\", "%", "#", "1.", "*",
        "_", "<div>", "</div>", "\0", "\r", "\x85", "\u2028", "\ufeff", ":name: a", "<<a>>",
    ]
)  # fmt: skip


@examples(120)
@given(st.lists(MARKS, max_size=30))
def test_marks_in_any_order(marks):
    holds("".join(marks))


@examples(40)
@given(
    PAGE, st.sampled_from(["\n", "\r\n", "\r"]), st.booleans(),
    st.none() | st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=3)),
)  # fmt: skip
def test_bytes_of_any_kind(pieces, ends, mark, junk):
    """Line ends, a mark at the start, and bytes that are no text; as files have them."""
    text = written(pieces)[0]
    raw = text.replace("\n", ends).encode()
    if junk is None:
        assert page((b"\xef\xbb\xbf" if mark else b"") + raw) == page(text)
        return
    at, inside = junk
    found = page(raw[:at] + inside + raw[at:])
    try:
        lines_are_exact(found, (raw[:at] + inside + raw[at:]).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        (problem,) = found.problems
        assert "not UTF-8" in problem.message and found.blocks == ()
        before = error.object[: error.start].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        assert problem.line == before.count(b"\n") + 1


TANGLED = st.lists(
    st.tuples(
        st.sampled_from(["a.py", "p/b.py", None]),
        st.sampled_from(["x = 1", "def f():\n    <<piece>>\n\n    return 1", "\tif 1:\n\n\t<<piece>>", ""]),
    ),
    min_size=1,
    max_size=5,
)


@examples(40)
@given(TANGLED, st.sampled_from(["pass", "if 1:\n\tpass\n\n'''\n\n'''", "# \u00e9"]))
def test_a_second_tangle_has_nothing_to_do(blocks, piece):
    """And what the files hold are the page's own lines, each where the book says it is."""
    fence = "```{{code-block}} python\n{}{}\n```\n"
    parts = [fence.format(f":tangle: {t}\n" if t else ":fragment: unused\n", body) for t, body in blocks]
    parts.append(fence.format(":fragment: piece\n", piece))
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        (base / "pyproject.toml").write_text("[tool.literate]\n")
        (base / "chapters").mkdir()
        (base / "chapters/a.md").write_text("\n".join(parts), "utf-8")
        book = Book(load(base))
        source = book.pages[0].source.split("\n")
        for file in book.files.values():
            for number, line in enumerate(file.text.split("\n"), 1):
                origin = file.origin(number)
                assert origin is None or line.strip() == source[origin.page_line - 1].strip()
        if book.problems:
            return
        assert len(tangle(book)) == len(book.files)
        assert tangle(Book(load(base))) == []


# --- what was found once, and pages that are too large to be found ----------------------


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_what_was_found_once(file):
    """A name that ends in -refused or -sound says what the reader must find."""
    raw = file.read_bytes()
    found = page(raw)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        assert found.problems
        return
    holds(text)
    assert found == page(text)
    if file.stem.endswith("-refused"):
        assert found.problems
    if file.stem.endswith("-sound"):
        assert not found.problems and (found.blocks or found.expressions)


BLOCK = "```{code-block} python\nx = 1\n```\n"
HUGE = {
    "long": "Words.\n\n" * 20_000 + BLOCK,
    "one line": "word " * 200_000 + "{num}`1 -> d`\n\n" + BLOCK,
    "quotes": "> " * 300 + "a\n\n" + BLOCK,
    "lists": "".join("  " * n + "- a\n" for n in range(300)) + "\n" + BLOCK,
    "directives": "".join(":" * (400 - n) + "{note}\n" for n in range(300)) + BLOCK
    + "".join(":" * (101 + n) + "\n" for n in range(300)),
    "ticks": "`" * 50_000 + "\n\n" + BLOCK,
    "backslashes": "\\" * 50_000 + "`{num}`\n\n" + BLOCK,
    "brackets": "[" * 5_000 + "\n\n" + BLOCK,
    "pipes": "|" * 5_000 + "\n" + "|-" * 2_500 + "\n\n" + BLOCK,
    "block": "```{code-block} python\n" + "x = 1\n" * 50_000 + "```\n",
    "blocks": BLOCK * 500,
}  # fmt: skip


@pytest.mark.parametrize("name", HUGE)
def test_pages_of_any_size_are_read_or_refused(name):
    text = HUGE[name]
    found = page(text)
    lines_are_exact(found, text)
    assert found.blocks or found.problems
    if not found.problems:
        assert found.blocks[-1].end_line == text.count("\n", 0, text.rindex("```")) + 1


PAGES = sorted((ROOT / "chapters").rglob("*.md")) + sorted((ROOT / "glossary").glob("*.md"))


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.stem)
def test_the_book_itself_is_parsed_as_myst_parses_it(file):
    tokens_are_the_plain_ones(file.read_text("utf-8"))


def test_what_must_be_read_is_known_by_its_looks():
    looks = count()
    for kind, text in (("{num} role", "a {num}`1 -> d`"), ("{code-block}", "> :::: {Code-Block} x")):
        assert WRITTEN[kind].search(text), next(looks)
    assert not WRITTEN["{num} role"].search(r"\{num}`1 -> d`")
