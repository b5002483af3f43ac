"""The `{num}` role: a number that is computed where it stands, with its provenance."""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

from ..expressions import Number, evaluate

logger = logging.getLogger(__name__)

#: Kinds of number that an instrument gave.
MEASURED = ("measured", "counted")


class number(nodes.Inline, nodes.TextElement):
    """A printed number that knows its kind and its sources."""


def provenance(kind: str, text: str) -> str:
    """The sources as a sentence that says of what kind the number is, once."""
    said = text.lower().startswith((kind, "not yet"))
    return text if said else f"{kind.title()}: {text}"


class NumberRole(SphinxRole):
    """Evaluate the role's text; a failure is a warning at its line."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        config = self.env.app.literate_book.config
        for path in config.data_files:
            self.env.note_dependency(str(path))
        try:
            found = evaluate(self.text, config)
        except Exception as error:
            logger.warning(
                "{num}`%s`: %s: %s", self.text, type(error).__name__, error,
                location=self.get_location(),
            )  # fmt: skip
            return [nodes.problematic(self.text, self.text)], []
        # A unit stays with its number; the words for one that is missing may break.
        keep = found.kind != "pending"
        shown = found.text.replace(" ", "\N{NO-BREAK SPACE}") if keep else found.text
        node = number(shown, shown, kind=found.kind, sources=list(found.sources))
        if isinstance(found.value, (int, float)) and keep:
            node["value"] = found.value
        builder = self.env.app.builder
        still = builder.format in ("latex", "text") or builder.name == "epub"
        if still and found.kind in MEASURED and found.sources:
            return [node, self._footnote(found)], []
        return [node], []

    def _footnote(self, found: Number) -> nodes.Node:
        """Where nothing can be hovered over, provenance is a footnote, one for each source of a page."""
        document = self.inliner.document
        text = "; ".join(found.sources)
        name = nodes.make_id(f"source-{text}")[:200]
        if name not in document.nameids and not any(
            name in note["names"] for note in document.autofootnotes
        ):
            # A command stays as it is typed: in running text `--` would become a dash.
            parts = re.split("`([^`]+)`", provenance(found.kind, text))
            said = [nodes.literal("", p) if i % 2 else nodes.Text(p) for i, p in enumerate(parts) if p]
            note = nodes.footnote("", nodes.paragraph(text, "", *said), auto=1)
            note["names"].append(name)
            document.note_autofootnote(note)
            document.note_explicit_target(note, note)
            document += note
        reference = nodes.footnote_reference("", refname=name, auto=1)
        document.note_autofootnote_ref(reference)
        document.note_footnote_ref(reference)
        return reference


def _visit_html(translator, node) -> None:
    attributes = {}
    if node["sources"] and translator.builder.name != "epub":
        text = provenance(node["kind"], "; ".join(node["sources"]))
        attributes = {"title": text, "tabindex": "0"}
    translator.body.append(
        translator.starttag(node, "span", "", CLASS=f"num num-{node['kind']}", **attributes)
    )


def _depart_html(translator, node) -> None:
    translator.body.append("</span>")


def _visit_latex(translator, node) -> None:
    # A measurement stands upright; what was only computed or quoted leans.
    upright = node["kind"] in MEASURED
    translator.body.append(r"\sphinxnumbermeasured{" if upright else r"\sphinxnumberpredicted{")


def _depart_latex(translator, node) -> None:
    translator.body.append("}")


def setup(app) -> None:
    app.add_role("num", NumberRole())
    app.add_node(
        number,
        html=(_visit_html, _depart_html),
        latex=(_visit_latex, _depart_latex),
        text=(lambda t, n: None, lambda t, n: None),
    )
