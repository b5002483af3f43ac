"""What a page shows, as MyST and docutils themselves read it: the judge of the reader.

Nothing of the reader is used. Every `{code-block}` that is rendered leaves its content
behind, wherever it stands, and so does every `{num}` role.
"""

from __future__ import annotations

from functools import cache

from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.parsers.rst import directives, roles
from docutils.parsers.rst.directives.misc import TestDirective
from docutils.utils import new_document
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.docutils_ import Parser
from myst_parser.parsers.mdit import create_md_parser


class Shown(TestDirective):
    """A block of code; any option will do."""

    def run(self):
        text = "\n".join(self.content)
        node = nodes.literal_block(text, text, shown=True)
        node.line = self.lineno
        caption = self.options.get("caption", "")
        return [*(self.state.inline_text(caption, self.lineno)[0] if caption else []), node]


class Holder(TestDirective):
    """Something with Markdown in it, like an exercise."""

    def run(self):
        node = nodes.container()
        title = "".join(self.arguments)
        node += self.state.inline_text(title, self.lineno)[0] if title else []
        self.state.nested_parse(self.content, self.content_offset, node)
        return [node]


def _num(name, rawtext, text, lineno, inliner, options=None, content=()):
    return [nodes.inline(rawtext, text, num=text)], []


def doctree(text: str, extensions: tuple[str, ...]) -> nodes.document:
    settings = get_default_settings(Parser)
    settings.myst_enable_extensions = set(extensions)
    settings.report_level = settings.halt_level = 5
    settings.warning_stream = False
    document = new_document("page.md", settings)
    kept = dict(directives._directives)
    directives._directives |= {"code-block": Shown, "exercise": Holder}
    roles.register_local_role("num", _num)
    try:
        Parser().parse(text, document)
    finally:
        directives._directives.clear()
        directives._directives.update(kept)
    return document


def shown(text: str, extensions: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The text of every block and of every number on the page, in order."""
    document = doctree(text, extensions)
    blocks = [n.rawsource for n in document.findall(nodes.literal_block) if "shown" in n]
    numbers = [n["num"] for n in document.findall(nodes.inline) if "num" in n]
    return blocks, numbers


@cache
def plain_parser(extensions: tuple[str, ...]) -> MarkdownIt:
    """MyST's parser with nothing skipped."""
    return create_md_parser(MdParserConfig(enable_extensions=set(extensions)), RendererHTML)
