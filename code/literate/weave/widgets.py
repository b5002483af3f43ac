"""`{widget} NAME`: something to play with, and what stands in its place elsewhere.

The directive's body is ordinary Markdown: a figure, a table. It is what paper shows, and
a screen without JavaScript. Where scripts run, `NAME.js` (a static file of the book)
fills the box instead; `conf.py` may name the module whose `data()` it draws from:

    literate_widgets = {"clock": "timepieces.clock"}

The data go into a script as well, `_static/NAME-data.js`, so that a page opened from a
disk finds them. `:needs:` names scripts that several widgets share.

With `:figure:` the body is one drawn figure, and the box takes the place of its picture
alone: number and caption stay where they are, whoever looks.
"""

from __future__ import annotations

import json
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

from .figures import drawing


class widget(nodes.General, nodes.Element):
    """The box that a script fills."""


class widget_fallback(nodes.General, nodes.Element):
    """What is shown where no script runs."""


class WidgetDirective(SphinxDirective):
    """The box, and its body in its place."""

    required_arguments = 1
    has_content = True
    option_spec = {
        "state": directives.unchanged,  # what it starts with, in the widget's own words
        # Pixels kept for it, so that nothing jumps; a second number is for a phone.
        "height": directives.positive_int_list,
        "label": directives.unchanged_required,  # what it is, for those who do not see it
        "needs": directives.unchanged_required,  # scripts to load before its own
        "figure": directives.flag,  # the body is a figure, whose caption stays
    }

    def run(self) -> list[nodes.Node]:
        body = self.parse_content_to_nodes()
        box = widget(
            name=self.arguments[0],
            state=self.options.get("state", ""),
            heights=self.options.get("height", [400]),
            label=self.options.get("label", self.arguments[0]),
            needs=self.options.get("needs", "").split(),
        )
        if "figure" in self.options:
            return self._in_the_figure(body, box)
        return [widget_fallback("", *body), box]

    def _in_the_figure(self, body: list[nodes.Node], box: widget) -> list[nodes.Node]:
        """The figure with the box beside its picture; what follows it (its code) is for paper."""
        first, *rest = body or [None]
        children = first.children if isinstance(first, nodes.figure) else []
        pictures = [child for child in children if isinstance(child, drawing)]
        if len(pictures) != 1:
            raise self.error(
                f"widget {self.arguments[0]}: with :figure: its body must begin with a code block"
                f" that has :figure:, got {getattr(first, 'tagname', 'nothing')}"
            )
        (picture,) = pictures
        place = first.index(picture)
        first.remove(picture)
        first.insert(place, [widget_fallback("", picture), box])
        return [first, widget_fallback("", *rest)] if rest else [first]


def _visit_widget(translator, node) -> None:
    translator.body.append(
        translator.starttag(
            node, "div", "", CLASS="widget", role="group",
            **{
                "aria-label": node["label"],
                "data-widget": node["name"],
                "data-state": node["state"],
                "style": f"--height: {node['heights'][0]}px; --narrow: {node['heights'][-1]}px",
            },
        )
    )  # fmt: skip


def _visit_fallback(translator, node) -> None:
    translator.body.append('<div class="widget-fallback">')


def _close(translator, node) -> None:
    translator.body.append("</div>")


def _pass(translator, node) -> None:
    pass


def _skip(translator, node) -> None:
    raise nodes.SkipNode


def _write_data(app) -> None:
    if app.builder.name != "html":
        return
    config = app.literate_book.config
    for name, module in sorted(app.config.literate_widgets.items()):
        found = json.dumps(config.import_module(module).data(), sort_keys=True)
        text = f"(window.widgetData ??= {{}})[{json.dumps(name)}] = {found};\n"
        file = Path(app.outdir) / "_static" / f"{name}-data.js"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("</", "<\\/"), "utf-8")


def _add_scripts(app, pagename, templatename, context, doctree) -> None:
    if app.builder.name != "html" or doctree is None:
        return
    boxes = list(doctree.findall(widget))
    for name in dict.fromkeys(name for box in boxes for name in (*box["needs"], box["name"])):
        if name in app.config.literate_widgets:
            app.add_js_file(f"{name}-data.js", loading_method="defer")
        app.add_js_file(f"{name}.js", loading_method="defer")


def setup(app) -> None:
    app.add_config_value("literate_widgets", {}, "env", dict)
    app.add_directive("widget", WidgetDirective)
    app.add_node(
        widget, html=(_visit_widget, _close), epub=(_skip, None), latex=(_skip, None), text=(_skip, None)
    )
    app.add_node(
        widget_fallback,
        html=(_visit_fallback, _close), latex=(_pass, _pass), text=(_pass, _pass),
    )  # fmt: skip
    app.connect("builder-inited", _write_data)
    app.connect("html-page-context", _add_scripts)
