"""Generated and mangled pages: no crash, no wrong line, nothing shown that is not read."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from literate.book import Book, untouched
from literate.config import Config
from literate.reader import STRAY, WRITTEN, read

CONFIG = Config(
    Path("/book"),
    extensions=("amsmath", "attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath"),
)
BOUNDED = settings(
    max_examples=150,
    deadline=None,
    phases=[Phase.generate],
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
#: A page in the making: its lines, and of each block that it shows the text.
Piece = tuple[list[str], list[str]]


def code(marker: str, options: str, body: str, number: int) -> Piece:
    text = body.replace("N", str(number))
    lines = [f"{marker}{{code-block}} python", *options.replace("N", str(number)).splitlines()]
    return [*lines, *text.split("\n"), marker], [text]


PROSE = st.sampled_from(
    ["Words.", "A {num}`1 -> d` here.", "`code {num}` and *more*", "$a < b$", "# Title", "| a |\n| - |\n| b |"]
)
CODE = st.builds(
    code,
    st.sampled_from(["```", "~~~", "::::", "`````"]),
    st.sampled_from(["", ":name: bN", ":name: bN\n\n", "---\nname: bN\ntimeout: 3\n---", ":name: bN   \n:timeout: 2"]),
    st.sampled_from(
        ["x = N", "if N:\n    x = '''\n\n:::\n<<a>>\n'''", "# N\n\tx", "def f():\n    'N'\n\n\n    return '``'", "s = N  # <!--"]
    ),
    st.integers(0, 10**9),
)  # fmt: skip
HIDDEN = ("<!--", "````````markdown", "%")


def longest(lines: list[str]) -> int:
    return max([2, *(len(run) for line in lines for run in re.findall(r"`+|:+|~+", line))])


def wrap(kind: str, pieces: list[Piece]) -> Piece:
    lines = [line for piece, _ in pieces for line in [*piece, ""]][:-1]
    while len(lines) > 1 and not lines[0]:
        del lines[0]
    shown = [text for _, texts in pieces for text in texts]
    marker = {"`": "`", "~": "~"}.get(kind[:1], ":") * (longest(lines) + 1)
    if kind == "list":
        lines = [("- " if not n else "  ") + line if line else "" for n, line in enumerate(lines)]
        return ["", *lines, ""], shown
    if kind == "quote":
        return [f"> {line}" for line in lines], shown
    if kind == "term":
        lines = [(":   " if not n else "    ") + line if line else "" for n, line in enumerate(lines)]
        return ["Term", *lines, ""], shown
    if kind == "container":
        return [f"{marker}aside", *lines, marker], shown
    if kind == "display":
        ticks = "`" * (longest(lines) + 1)
        return [f"{ticks}markdown", *lines, ticks], []
    if kind == "comment":
        return ["<!--", *(line.replace("-->", "") for line in lines), "-->", ""], []
    return [f"{marker}{{{kind.lstrip('`~')}}}", ":class: c", "", *lines, marker], shown


KINDS = ["list", "quote", "term", "container", "display", "comment", "note", "`tip", "~note", "exercise"]
LEAF = st.one_of(CODE, PROSE.map(lambda text: (text.split("\n"), [])))
PIECE = st.recursive(
    LEAF,
    lambda inner: st.builds(wrap, st.sampled_from(KINDS), st.lists(inner, min_size=1, max_size=3)),
    max_leaves=6,
)
PAGE = st.lists(PIECE, min_size=1, max_size=4)


def page(text: str):
    return read(CONFIG.base / "chapters" / "a.md", CONFIG, text)


def written(pieces: list[Piece]) -> tuple[str, list[str]]:
    lines, shown = [], []
    for piece, texts in pieces:
        lines += [*piece, ""]
        shown += texts
    return "\n".join(lines), shown


def lines_are_exact(found, text: str) -> None:
    # Such characters end lines for some and not for others; the page is refused for them.
    source = STRAY.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n")).split("\n")
    for block in found.blocks:
        # An unclosed fence takes in the blank line that a parser adds below a page.
        for number, line in enumerate(block.text.rstrip().split("\n"), block.code_line):
            assert line.strip() in source[number - 1]
        assert "code-block" in source[block.line - 1].lower()
    for expression in found.expressions:
        assert "{num}`" in source[expression.line - 1]
    for problem in found.problems:
        assert 1 <= problem.line <= len(source) + 1 and problem.path == "chapters/a.md"


@BOUNDED
@given(PAGE)
def test_every_block_that_a_sound_page_shows_is_read(pieces):
    text, shown = written(pieces)
    found = page(text)
    lines_are_exact(found, text)
    assert [block.text for block in found.blocks] == shown


MANGLES = st.lists(
    st.tuples(
        st.sampled_from(["drop", "twice", "cut", "put", "indent"]),
        st.integers(0, 200),
        st.sampled_from(
            ["```", ":::", "~~~", "<!--", "-->", "---", "\0", "\r", "\u2028", "\x0c", "\t", "    ", "{num}`", "`", "$$",
             "> ", "- ", "[^1]: ", "<div>", "```{code-block} python", ":::{note}", "::::", ":tangle: a.py", "<<a>>", "\ufeff"]
        ),
    ),
    min_size=1,
    max_size=4,
)  # fmt: skip


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
        else:
            lines[n] = junk + lines[n]
    return "\n".join(lines)


@BOUNDED
@given(PAGE, MANGLES)
def test_a_mangled_page_never_crashes_and_never_hides_a_block(pieces, faults):
    text = mangle(written(pieces)[0], faults)
    found = page(text)
    lines_are_exact(found, text)
    book = Book(CONFIG, [found])
    assert all(untouched(file.text) for file in book.files.values())
    assert {t: f.text for t, f in Book(CONFIG, [page(text)]).files.items()} == {
        t: f.text for t, f in book.files.items()
    }


def test_what_must_be_read_is_known_by_its_looks():
    looks = count()
    for kind, text in (("{num} role", "a {num}`1 -> d`"), ("{code-block}", "> :::: {Code-Block} x")):
        assert WRITTEN[kind].search(text), next(looks)
    assert not WRITTEN["{num} role"].search(r"\{num}`1 -> d`")
