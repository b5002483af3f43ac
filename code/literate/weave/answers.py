"""`{answer} QUESTION`: a number that the reader finds, and that the page checks.

    :::{answer} the time in µs
    :tolerance: 0.02
    {num}`bytes / bandwidth * 1e6 -> .3g`
    :::

The body is one computed number, so it is evaluated, and tested, like every other; it is
not shown. On paper there is nothing: the solution says it.
"""

from __future__ import annotations

import base64
import math

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from .numbers import number

logger = logging.getLogger(__name__)


class answer(nodes.General, nodes.Element):
    """A question with its number."""


class AnswerDirective(SphinxDirective):
    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec = {"tolerance": float}

    def run(self) -> list[nodes.Node]:
        made = self.parse_content_to_nodes()
        found = [node for part in made for node in part.findall(number)]
        value = found[0].get("value") if len(found) == 1 else None
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            logger.warning("{answer} takes one computed number", location=self.get_location())
            return []
        said, messages = self.parse_inline(self.arguments[0])
        node = answer("", nodes.inline("", "", *said), value=float(value),
                      tolerance=self.options.get("tolerance", 0.02))  # fmt: skip
        return [node, *messages]


def hidden(value: float) -> str:
    """The number, so that nobody reads it by accident."""
    return base64.b64encode(repr(value).encode()).decode()


def _visit_html(translator, node) -> None:
    translator.body.append(
        f'<form class="answer" data-answer="{hidden(node["value"])}"'
        f' data-tolerance="{node["tolerance"]}"><label>'
    )


def _depart_html(translator, node) -> None:
    translator.body.append(
        ' <input type="text" inputmode="decimal" autocomplete="off" size="10"></label>'
        ' <button type="submit">check</button> <output aria-live="polite"></output></form>'
    )


def _skip(translator, node) -> None:
    raise nodes.SkipNode


def _add_script(app, pagename, templatename, context, doctree) -> None:
    if doctree is not None and app.builder.name == "html" and any(doctree.findall(answer)):
        app.add_js_file("answers.js", loading_method="defer")


def setup(app) -> None:
    app.add_directive("answer", AnswerDirective)
    app.add_node(
        answer,
        html=(_visit_html, _depart_html), epub=(_skip, None), latex=(_skip, None), text=(_skip, None),
    )  # fmt: skip
    app.connect("html-page-context", _add_script)
