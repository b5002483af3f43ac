"""Read one page: MyST's own tokens in, records out. No other code looks for fences.

Directives hold Markdown of their own (an admonition, an exercise), so the reader goes
into them as MyST does, and keeps count of the lines. What it cannot vouch for (a fence
it would not run, a role it cannot see) is a problem of the page: the census.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import yaml
from docutils.parsers.rst import Directive
from docutils.parsers.rst.directives.misc import TestDirective
from markdown_it.token import Token
from myst_parser.parsers.directives import parse_directive_text

from . import options as block_options
from .config import Config
from .errors import Problem, shown
from .myst import option_count, option_lines, options_height, parser
from .records import Block, Expression, Page

ROLE = "num"

#: What a directive can be called; whether there is one, only weaving knows.
DIRECTIVE = re.compile(r"[a-z0-9][a-z0-9_:+.-]*")
#: Directives whose body is not Markdown: nothing in them is read, nothing is expected.
LITERAL = frozenset(
    "math raw toctree image mermaid graphviz bibliography index highlight"
    " contents tableofcontents role".split()
)
#: Directives that read roles where this reader does not: a number there is a problem.
UNREAD = frozenset("csv-table parsed-literal".split())
#: Directives that show or run code behind the reader's back.
REFUSED = frozenset(
    "code sourcecode code-cell literalinclude include eval-rst testcode testsetup"
    " testcleanup doctest ipython jupyter-execute plot exec prompt".split()
)
PYTHON_LIKE = frozenset(
    "py python python2 py2 python3 py3 pyi sage pycon python-console ipython ipython3"
    " ipythonconsole doctest default".split()
)
#: Line ends that Python sees and Markdown does not: they would shift every number after them.
STRAY = re.compile("[\x00\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029]")
#: What must have been read wherever it is written, and what it is called.
WRITTEN = {
    f"{{{ROLE}}} role": re.compile(r"(?<!\\)\{" + ROLE + r"\}`"),
    "{code-block}": re.compile(r"(?:```|~~~|:::)[ \t]*\{code-block\}", re.IGNORECASE),
}
#: In raw HTML: a fence (it lacks the blank line above it), or code that no test sees.
CODE_IN_HTML = re.compile(r"^[ \t]*(?:```|~~~|:::)|<(?:pre|code)\b", re.IGNORECASE | re.MULTILINE)
#: What a page's own `myst:` settings may say; the others change how pages are parsed.
MYST_SETTINGS = frozenset({"html_meta"})


def read(file: Path, config: Config, source: str | bytes | None = None) -> Page:
    """Read a page. What is wrong with it is in `.problems`; this does not raise for it."""
    path = shown(file, config.base)
    problems: list[Problem] = []
    try:
        source = file.read_bytes() if source is None else source
        if isinstance(source, bytes):
            source = source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = len(re.findall(rb"\r\n|\n|\r", error.object[: error.start])) + 1
        problems.append(Problem(path, line, f"not UTF-8: {error.reason}"))
        return Page(file, path, "", {}, (), (), tuple(problems))
    except OSError as error:
        problems.append(Problem(path, 1, f"cannot be read: {error.strerror}"))
        return Page(file, path, "", {}, (), (), tuple(problems))
    # Markdown has one kind of line end; a file that is read in text mode has it already.
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    reading = _Reading(path, source, config, problems)
    reading.run()
    return Page(
        file=file,
        path=path,
        source=source,
        meta=reading.meta,
        blocks=tuple(reading.blocks),
        expressions=tuple(reading.expressions),
        problems=tuple(sorted(problems, key=lambda problem: problem.line)),
    )


class _Fence(NamedTuple):
    """A fence token, with its place in the whole page."""

    token: Token
    line: int
    closed: bool
    end_line: int


class _Reading:
    def __init__(self, path: str, source: str, config: Config, problems: list[Problem]):
        self.path = path
        self.source = source
        self.source_lines: list[str] = []
        self.config = config
        self.problems = problems
        self.meta: dict = {}
        self.blocks: list[Block] = []
        self.expressions: list[Expression] = []
        #: Every name that something on the page claims, with its line.
        self.names: list[tuple[str, int]] = []
        self.opaque: set[int] = set()
        #: How often each kind of WRITTEN was read on each line.
        self.accounted: Counter[tuple[str, int]] = Counter()
        self.in_footnote = False
        self.markdown = parser(config.extensions)

    def run(self) -> None:
        for match in STRAY.finditer(self.source):
            line = self.source.count("\n", 0, match.start()) + 1
            self.complain(line, f"stray control character {match[0]!r}")
        # They are refused; all that follows them on the page still has its right line.
        self.source = STRAY.sub("\N{REPLACEMENT CHARACTER}", self.source)
        self.source_lines = self.source.split("\n")
        try:
            self.walk(self.source, 1)
        except RecursionError:
            self.complain(1, "directives are nested too deep to be read")
        self.check_all_was_read()
        self.check_names()

    def complain(self, line: int, message: str) -> None:
        self.problems.append(Problem(self.path, line, message))

    # -- blocks ------------------------------------------------------------------------

    def walk(self, text: str, first: int) -> None:
        """Read Markdown whose first line is line `first` of the page."""
        for token in self.markdown.parse(text + "\n"):
            line = first + token.map[0] if token.map else first
            if token.type == "front_matter" and first == 1:
                self.read_meta(token)
            elif token.type in ("fence", "colon_fence"):
                self.fence(token, line)
            elif token.type == "code_block":
                self.complain(line, "indented code: write a {code-block} with a language")
            elif token.type == "html_block":
                self.html(token, line)
            elif token.type == "myst_line_comment":
                self.opaque.update(range(line, first + token.map[1]))
            elif token.type in ("footnote_reference_open", "footnote_reference_close"):
                self.in_footnote = token.nesting == 1
            elif token.type == "inline":
                self.inline(token, line)

    def html(self, token: Token, line: int) -> None:
        if not token.content.lstrip().startswith("<!--"):
            if CODE_IN_HTML.search(token.content):
                self.complain(
                    line, "code inside HTML is not read: write {code-block}, a blank line above it"
                )
        elif "-->" in token.content:
            self.opaque.update(range(line, line + token.map[1] - token.map[0]))
        else:
            self.complain(line, "the comment opened here is never closed")

    def read_meta(self, token: Token) -> None:
        try:
            meta = yaml.safe_load(token.content)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            self.complain(1, f"front matter is not YAML: {error}")
        else:
            self.meta = meta if isinstance(meta, dict) else {}
            settings = self.meta.get("myst") or {}
            if not isinstance(settings, dict) or set(settings) - MYST_SETTINGS:
                self.complain(1, "a page cannot change how MyST reads it: `myst:` does not belong here")
        self.opaque.update(range(1, token.map[1] + 1))

    def fence(self, token: Token, line: int) -> None:
        height = token.map[1] - token.map[0]
        # A closed fence has one line more than its content and its opening line.
        closed = token.content.count("\n") == height - 2
        fence = _Fence(token, line, closed, line + height - 1)
        words = token.info.strip().split(maxsplit=1)
        name, argument = (words + ["", ""])[:2]
        if not closed:
            self.complain(line, f"the fence {token.markup!r} opened here is never closed")
        if name.startswith("{") and name.endswith("}"):
            self.directive(fence, name[1:-1].lower(), argument)
            return
        if token.type == "colon_fence":
            # Colons without a directive are a plain container of Markdown.
            self.walk(token.content, line + 1)
            return
        self.opaque.update(range(line, fence.end_line + 1))
        if not name:
            self.complain(line, "a fence without a language: name one (`text` if none fits)")
        elif name.lower() in PYTHON_LIKE:
            self.complain(
                line, f"Python in a plain {name!r} fence: write {{code-block}} python, so it runs"
            )

    def directive(self, fence: _Fence, name: str, argument: str) -> None:
        inside = range(fence.line, fence.end_line + 1)
        if not DIRECTIVE.fullmatch(name):
            self.complain(fence.line, f"no directive is called {name!r}")
        if name == "code-block":
            self.opaque.update(inside)
            self.code_block(fence, argument)
        elif name in REFUSED:
            self.opaque.update(inside)
            self.complain(
                fence.line, f"{{{name}}} is not read by the tests: use {{code-block}}"
            )
        elif name in LITERAL:
            # Its body is; its title and its options may be read as Markdown all the same.
            body = fence.line + 1 + options_height(fence.token.content)
            self.opaque.update(range(body, fence.end_line + 1))
        elif name not in UNREAD:
            if argument:
                self.walk_line(argument, fence.line)
            body = self.body(fence, argument)
            self.names += [(body.options[k], fence.line) for k in ("name", "label") if k in body.options]
            self.walk_options(fence, body.options, ("caption", "title"))
            self.walk("\n".join(body.body), fence.line + 1 + body.body_offset)

    def body(self, fence: _Fence, argument: str, cls: type[Directive] = TestDirective):
        """Split options from body as MyST does; `TestDirective` accepts any option."""
        found = parse_directive_text(cls, argument, fence.token.content, line=fence.line - 1)
        for warning in found.warnings:
            self.complain(fence.line, warning.msg)
        if option_count(fence.token.content) == len(found.options):
            return found  # one line each: none is there twice
        keys = Counter(key for key, _ in option_lines(fence.token.content))
        for key in (key for key, times in keys.items() if times > 1):
            self.complain(fence.line, f"option :{key}: is given twice")
        return found

    def walk_options(self, fence: _Fence, options: dict, keys: tuple[str, ...]) -> None:
        """Read the options that MyST reads as inline Markdown, at their own lines."""
        for key in keys:
            if options.get(key):
                line = fence.line + dict(option_lines(fence.token.content)).get(key, 0)
                # A value that YAML folds starts below its key.
                below = range(line, fence.end_line)
                role = (n for n in below if f"{{{ROLE}}}" in self.source_lines[n - 1])
                self.walk_line(options[key], next(role, line))

    def code_block(self, fence: _Fence, language: str) -> None:
        body = self.body(fence, language)
        values, wrong = block_options.parse(body.options)
        for sentence in wrong:
            self.complain(fence.line, sentence)
        block = Block(
            path=self.path,
            language=language,
            text="\n".join(body.body),
            options=values,
            line=fence.line,
            code_line=fence.line + 1 + body.body_offset,
            end_line=fence.end_line,
        )
        self.accounted["{code-block}", block.line] += 1
        self.walk_options(fence, body.options, ("caption", "figure"))
        self.check_block(block)
        self.blocks.append(block)

    def check_block(self, block: Block) -> None:
        options, line = block.options, block.line
        if not block.language:
            self.complain(line, "a {code-block} without a language: name one")
        elif len(block.language.split()) > 1:
            self.complain(line, f"{{code-block}} takes one word, its language, not {block.language!r}")
        elif block.language != "python" and block.language.lower() in PYTHON_LIKE:
            self.complain(line, f"write 'python', not {block.language!r}, so that the block runs")
        python = block.language == "python"
        for key in ("requires", "timeout", "figure"):
            if key in options and not python:
                self.complain(line, f":{key}: is for python blocks")
        if block.is_output and python:
            self.complain(line, ":output: is for the text block after a python block")
        if "figure" in options and "requires" in options:
            self.complain(line, ":figure: cannot have :requires:, since it is drawn where the book is woven")
        if ("figure" in options) != ("alt" in options):
            self.complain(line, ":figure: and :alt: go together")
        if sum(key in options for key in ("tangle", "fragment", "figure", "output")) > 1:
            self.complain(line, ":tangle:, :fragment:, :figure: and :output: exclude each other")
        if "display-only" in options and ("tangle" in options or "fragment" in options):
            self.complain(line, "a block that goes into a file is always checked; drop :display-only:")
        before = self.blocks[-1] if self.blocks else None
        if block.is_output and not (before and before.runs and "figure" not in before.options):
            self.complain(line, "no python block that runs stands before this :output:")
        if self.in_footnote:
            self.complain(line, "code in a footnote is shown elsewhere than it stands: move it out")
        for requirement in options.get("requires", ()):
            try:
                requirement.check(self.config)
            except Exception as error:  # the book's own module is imported: anything may come
                self.complain(line, str(error) or repr(error))

    def check_names(self) -> None:
        """A block's name is a link target: nothing else on the page may have it."""
        claims = self.names + [(block.name, block.line) for block in self.blocks if block.name]
        seen: dict[str, int] = {}
        for name, line in sorted(claims, key=lambda claim: claim[1]):
            if name in seen:
                self.complain(line, f":name: {name} is taken by line {seen[name]}")
            seen.setdefault(name, line)

    # -- expressions -------------------------------------------------------------------

    def walk_line(self, text: str, line: int) -> None:
        """Read inline Markdown that stands on one line (a title, a caption)."""
        for token in self.markdown.parseInline(text):
            self.inline(token, line)

    def inline(self, token: Token, line: int) -> None:
        for child in token.children or []:
            if "span" not in child.meta:
                continue
            start, end = child.meta["span"]
            at = line + token.content.count("\n", 0, start)
            if child.type == "myst_role" and child.meta.get("name") == ROLE:
                self.expression(child.content, at)
            elif child.type == "code_inline":
                # Markup that a page quotes is not markup of the page.
                quoted = token.content[start:end]
                for kind, pattern in WRITTEN.items():
                    for match in pattern.finditer(quoted):
                        self.accounted[kind, at + quoted.count("\n", 0, match.start())] += 1

    def expression(self, text: str, line: int) -> None:
        kind = f"{{{ROLE}}} role"
        written = self.source_lines[line - 1] if line <= len(self.source_lines) else ""
        starts = [m.start() for m in WRITTEN[kind].finditer(written)]
        taken = self.accounted[kind, line]
        self.accounted[kind, line] += 1
        column = starts[taken] if taken < len(starts) else 0
        self.expressions.append(Expression(self.path, line, column, text))

    def check_all_was_read(self) -> None:
        """What is written and may be shown must have been read: none may go unproved."""
        for kind, pattern in WRITTEN.items():
            written: Counter[int] = Counter()
            number, before = 1, 0
            for match in pattern.finditer(self.source):
                number += self.source.count("\n", before, match.start())
                before = match.start()
                written[number] += 1
            for number, times in written.items():
                if number not in self.opaque and times > self.accounted[kind, number]:
                    self.complain(number, f"a {kind} here is not read by the tests")
