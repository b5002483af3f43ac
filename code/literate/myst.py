"""MyST's own parser, and what it knows and does not say: where on a page things stand."""

from __future__ import annotations

import re
from functools import cache
from itertools import takewhile
from textwrap import dedent

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock, table
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline, backtick
from mdit_py_plugins.myst_role.index import myst_role
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser
from myst_parser.parsers.options import TokenizeError, options_to_tokens


@cache
def parser(extensions: tuple[str, ...]) -> MarkdownIt:
    """A parser whose roles and code spans say where in their text they stand.

    It leaves text alone that can hold neither, which is most of a book, and does not
    count words: what is skipped changes no token that a reader of code looks at.
    """
    made = create_md_parser(MdParserConfig(enable_extensions=set(extensions)), RendererHTML)
    made.disable(["text_join", "wordcount"], ignoreInvalid=True)
    made.core.ruler.at("inline", _where_roles_may_be)
    made.block.ruler.at("table", _where_pipes_are, {"alt": ["paragraph", "reference"]})
    for name, rule in (("myst_role", myst_role), ("backticks", backtick)):
        made.inline.ruler.at(name, _placed(rule))
    return made


def _where_roles_may_be(state: StateCore) -> None:
    for token in state.tokens:
        if token.type == "inline":
            token.children = token.children or []
            if "`" in token.content and "{" in token.content:
                state.md.inline.parse(token.content, state.md, state.env, token.children)


def _where_pipes_are(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    # The rule itself finds this out after looking at each character of the line below.
    if state.src.find("|", state.bMarks[start], state.eMarks[start]) < 0:
        return False
    return table(state, start, end, silent)


def _placed(rule):
    def placed(state: StateInline, silent: bool) -> bool:
        start, before = state.pos, len(state.tokens)
        found = rule(state, silent)
        # Text before it may have become a token, too; the rule's own is the last.
        if found and not silent and len(state.tokens) > before:
            state.tokens[-1].meta["span"] = (start, state.pos)
        return found

    return placed


def option_count(content: str) -> int:
    """How many lines of a directive may be options; quicker than to parse them."""
    if content.startswith("---"):
        return -1
    return sum(1 for _ in takewhile(re.compile(r"\s*:(?!::)").match, content.splitlines()))


def options_height(content: str) -> int:
    """On how many lines of a directive its options stand, marks around them included."""
    count = option_count(content)
    if count >= 0:
        return count
    inside = list(takewhile(lambda text: not text.startswith("---"), content.splitlines()[1:]))
    return len(inside) + 2


def option_lines(content: str) -> list[tuple[str, int]]:
    """Each option of a directive and its line, counted from the opening fence."""
    lines = content.splitlines()
    if content.startswith("---"):
        first = 2
        block = dedent("\n".join(takewhile(lambda text: not text.startswith("---"), lines[1:])))
    else:
        first = 1
        options = takewhile(lambda text: re.match(r"\s*:(?!::)", text), lines)
        block = "\n".join(text.lstrip()[1:] for text in options)
    try:
        return [(key.value, key.start.line + first) for key, _ in options_to_tokens(block)[0]]
    except TokenizeError:  # MyST's own warning says so
        return []
