"""The reader sees what MyST shows, at the right lines, and owns up to what it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from literate.config import Config
from literate.reader import read

CONFIG = Config(Path("/book"), extensions=("colon_fence", "dollarmath", "deflist"))


def page(text: str):
    return read(CONFIG.base / "chapters" / "a.md", CONFIG, text)


def only_block(text: str):
    (block,) = page(text).blocks
    return block


def messages(text: str) -> list[str]:
    return [f"{p.line}: {p.message}" for p in page(text).problems]


LAYOUTS = {
    "options, no blank": "```{code-block} python\n:name: n\nx = 1\n```\n",
    "options, blank": "```{code-block} python\n:name: n\n\nx = 1\n```\n",
    "no options": "```{code-block} python\nx = 1\n```\n",
    "yaml options": "```{code-block} python\n---\nname: n\ntimeout: 3\n---\nx = 1\n```\n",
    "tildes": "~~~~{code-block} python\nx = 1\n~~~~\n",
    "colons": ":::{code-block} python\n:name: n\nx = 1\n:::\n",
    "trailing space": "```{code-block} python   \nx = 1\n```   \n",
    "upper-case directive": "```{Code-Block} python\nx = 1\n```\n",
    "in a list": "- a\n\n  ```{code-block} python\n  :name: n\n  x = 1\n  ```\n",
    "in a quote": "> ```{code-block} python\n> x = 1\n> ```\n",
    "in an admonition": ":::{note} T\n:class: c\n\n```{code-block} python\n:name: n\nx = 1\n```\n:::\n",
    "two deep": "::::{note}\n:::{tip} T\n```{code-block} python\nx = 1\n```\n:::\n::::\n",
    "backticks two deep": "`````{note}\n````{tip}\n```{code-block} python\nx = 1\n```\n````\n`````\n",
    "after front matter": "---\na: 1\n---\n\n```{code-block} python\nx = 1\n```\n",
    "after CRLF": "text\r\n\r\n```{code-block} python\r\nx = 1\r\n```\r\n".replace("\r\n", "\n"),
}


@pytest.mark.parametrize("text", LAYOUTS.values(), ids=LAYOUTS)
def test_lines_are_exact_in_every_layout(text):
    block = only_block(text)
    lines = text.split("\n")
    assert block.text == "x = 1"
    assert "x = 1" in lines[block.code_line - 1]
    assert "code-block" in lines[block.line - 1].lower()
    assert block.end_line > block.code_line
    assert not page(text).problems


@pytest.mark.parametrize(
    "fence",
    ["```python", "```py", "```Python", "```python3", "```pycon", "``` python", "~~~ipython3"],
)
def test_python_in_a_plain_fence_is_a_problem(fence):
    found = messages(f"a\n\n{fence}\nx = 1\n{fence[:3]}\n")
    assert len(found) == 1 and found[0].startswith("3: Python in a plain")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```\nx\n```\n", "1: a fence without a language"),
        ("a\n\n    x = 1\n", "3: indented code"),
        ("```{code-block}\nx\n```\n", "1: a {code-block} without a language"),
        ("```{code-block} py\nx\n```\n", "1: write 'python'"),
        ("```{code-cell}\nx\n```\n", "1: {code-cell} is not read"),
        ("```{literalinclude} a.py\n```\n", "1: {literalinclude} is not read"),
        ("```{eval-rst}\nx\n```\n", "1: {eval-rst} is not read"),
        ("```{code-block} python\nx = 1\n", "1: the fence '```' opened here is never closed"),
        ("```{code-block} python\n:nmae: n\nx\n```\n", "1: unknown option :nmae:"),
        ("```{code-block} python\n:tangle: ../x.py\nx\n```\n", "1: option :tangle: cannot be"),
        ("```{code-block} python\n:tangle: /x.py\nx\n```\n", "1: option :tangle: cannot be"),
        ("```{code-block} python\n:tangle: a/./b.py\nx\n```\n", "1: option :tangle: cannot be"),
        ("```{code-block} python\n:requires: moon\nx\n```\n", "1: no condition is called 'moon'"),
        ("```{code-block} python\n:display-only:\nx\n```\n", "1: option :display-only: cannot be"),
        ("```{code-block} python\n:timeout: -1\nx\n```\n", "1: option :timeout: cannot be"),
        ("```{code-block} text\n:output:\nx\n```\n", "1: no python block that runs"),
        ("```{code-block} python\n:figure: f\nx\n```\n", "1: :figure: and :alt: go together"),
        ("a <!-- {num}`1 -> d` -->\n\nb\n", "1: a {num} role here is not read"),
        ("a\x0bb\n", "1: stray control character"),
        ("---\na: [\n---\n", "1: front matter is not YAML"),
    ],
)
def test_what_cannot_be_proved_is_a_problem(text, expected):
    assert any(found.startswith(expected) for found in messages(text)), messages(text)


@pytest.mark.parametrize(
    "text",
    [
        "````markdown\n```{code-block} python\nx = 1\n```\n````\n",
        "<!--\n```{code-block} python\nx = 1\n```\n-->\n",
        "% ```{code-block} python\n",
        "```{math}\nx = 1\n```\n",
    ],
)
def test_what_is_not_shown_as_code_is_not_read(text):
    assert page(text).blocks == () and not page(text).problems


def test_expressions_are_found_wherever_prose_stands():
    text = (
        "# T {num}`a -> d`\n\npara\ngraph {num}`b -> d` and {num}`c +\n1 -> d`\n{num}`d -> d`\n\n"
        "| x |\n| - |\n| {num}`e -> d` |\n\n- {num}`f -> d`\n\n"
        ":::{note} T {num}`g -> d`\nbody {num}`h -> d`\n:::\n\nterm\n: {num}`i -> d`\n"
    )
    found = [(e.text.split()[0], e.line) for e in page(text).expressions]
    assert found == [
        ("a", 1), ("b", 4), ("c", 4), ("d", 6), ("e", 10), ("f", 12), ("g", 14), ("h", 15), ("i", 19),
    ]  # fmt: skip
    assert not page(text).problems


def test_two_roles_on_a_line_have_their_columns():
    first, second = page("a {num}`1 -> d` b {num}`2 -> d`\n").expressions
    assert (first.column, second.column) == (2, 18)


def test_a_file_that_is_not_utf8_names_its_line(tmp_path):
    file = tmp_path / "a.md"
    file.write_bytes(b"fine\n\xff\n")
    (problem,) = read(file, Config(tmp_path)).problems
    assert str(problem).startswith("a.md:2: not UTF-8")


def test_a_byte_order_mark_hides_nothing(tmp_path):
    file = tmp_path / "a.md"
    file.write_bytes(b"\xef\xbb\xbf```{code-block} python\r\nx = 1\r\n```\r\n")
    (block,) = read(file, Config(tmp_path)).blocks
    assert (block.text, block.code_line) == ("x = 1", 2)


def test_names_must_differ():
    block = "```{code-block} python\n:name: n\nx = 1\n```\n\n"
    assert messages(block * 2) == ["6: :name: n is taken by line 1"]


CODE = "```{code-block} python\nx = 1\n```\n"
OUTPUT = "\n```{code-block} text\n:output:\n1\n```\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"<details>\n{CODE}</details>\n", "1: code inside HTML is not read"),
        ("<pre>x = 1</pre>\n", "1: code inside HTML is not read"),
        ("<div>\n{num}`1 -> d`\n</div>\n", "2: a {num} role here is not read"),
        (f"<!-- oops\n\n{CODE}", "1: the comment opened here is never closed"),
        (f"$$\n{CODE}$$\n", "2: a {code-block} here is not read"),
        (f":::{{note}}\n:class: c\n\n---\n{CODE}---\n:::\n", "5: a {code-block} here is not read"),
        ("```{csv-table}\na,{num}`1 -> d`\n```\n", "2: a {num} role here is not read"),
        ("![{num}`1 -> d`](x.png)\n", "1: a {num} role here is not read"),
        (f"a[^1]\n\n[^1]: b\n\n    {CODE.replace(chr(10), chr(10) + '    ')}", "5: code in a footnote"),
        ("```{code-block} python x\n1\n```\n", "1: {code-block} takes one word"),
        ("```{code-block} default\n1\n```\n", "1: write 'python'"),
        ("```{code-block} python\n:tangle: a.py\n:tangle: b.py\n1\n```\n", "1: option :tangle: is given twice"),
        ("```{code-block} python\n---\nname: a\nname: b\n---\n1\n```\n", "1: option :name: is given twice"),
        ("```{code-block} python\n:dedent: 2\n  1\n```\n", "1: unknown option :dedent:"),
        ("```{code-block} python\n:figure: f\n:alt: a\n1\n```\n" + OUTPUT, "7: no python block that runs"),
        ("---\nmyst:\n  disable_syntax: [fence]\n---\n", "1: a page cannot change how MyST reads it"),
        ("".join(f"{':' * n}{{note}}\n" for n in range(400, 3, -1)), "1: directives are nested too deep"),
    ],
)  # fmt: skip
def test_what_is_shown_and_cannot_be_read_is_a_problem(text, expected):
    assert any(found.startswith(expected) for found in messages(text)), messages(text)


def test_a_plain_container_is_read():
    found = page(f":::aside\n{CODE}\n{{num}}`1 -> d`\n:::\n")
    assert [b.code_line for b in found.blocks] == [3] and [e.line for e in found.expressions] == [6]


def test_captions_are_read_at_their_own_lines():
    text = (
        ":::{figure} x.png\n:class: c\n:caption: {num}`1 -> d`\n:::\n\n"
        "```{code-block} python\n---\nname: n\ncaption: |\n  {num}`2 -> d`\n---\nx = 1\n```\n"
    )
    found = page(text)
    assert [(e.text, e.line) for e in found.expressions] == [("1 -> d", 3), ("2 -> d", 10)]
    assert not found.problems


def test_quoted_markup_is_no_markup():
    text = "Write `` {num}`1 -> d` `` or \\{num}`1 -> d` or `` ```{code-block} ``\n{num}`1 -> d`\n"
    assert [(e.line, e.column) for e in page(text).expressions] == [(2, 0)]
    assert not page(text).problems


def test_a_role_keeps_the_spaces_of_its_strings():
    assert page("{num}`len('a  b') -> d`\n").expressions[0].text == "len('a  b') -> d"


def test_lone_carriage_returns_end_lines():
    (block,) = page("a\rb\r```{code-block} python\rx = 1\r```\r").blocks
    assert (block.text, block.code_line) == ("x = 1", 4)


def test_a_page_that_cannot_be_opened_is_a_problem(tmp_path):
    (tmp_path / "a.md").symlink_to("nowhere")
    (problem,) = read(tmp_path / "a.md", Config(tmp_path)).problems
    assert str(problem) == "a.md:1: cannot be read: No such file or directory"
