"""Exercises of sphinx-exercise in plain text, which it has no writer for: set in, as a note is.

Nothing here is wanted by a book without that extension.
"""

from __future__ import annotations


def _visit_text(translator, node) -> None:
    translator.new_state(2)
    builder = translator.builder
    numbers = builder.env.toc_fignumbers.get(node["docname"], {}).get("exercise", {})
    if node["label"] in numbers:
        number = ".".join(map(str, numbers[node["label"]]))
        translator.add_text(builder.config.numfig_format["exercise"] % number)


def _depart_text(translator, node) -> None:
    translator.end_state()


def _register(app, config) -> None:
    # By name, so that nothing of the extension is imported.
    handlers = app.registry.translation_handlers.setdefault("text", {})
    for kind in ("exercise_enumerable_node", "exercise_node", "solution_node"):
        handlers.setdefault(kind, (_visit_text, _depart_text))


def setup(app) -> None:
    app.connect("config-inited", _register)  # after extensions: a writer of its own goes before
