"""Evaluate what a `{num}` role says, and tell where its value came from.

`EXPR -> FORMAT`: EXPR is Python over the names of the book's namespace module, FORMAT
goes to that module's `render(value, format)`, or to `format()` if it has none. If the
module has `collect_sources()`, a context manager that yields a list, then whatever the
expression looked up is in that list afterwards, each with `.kind` and `.text`; that is
the number's provenance. A number that was looked up nowhere is computed. A source of kind
`pending` says that the value is still to come: then words are printed, and no number.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from .config import Config

#: The first kind found among a number's sources names the number.
KINDS = ("measured", "counted", "compiled", "datasheet")
#: What stands in the place of a number that is still to come.
PENDING = "not yet measured"


@dataclass(frozen=True)
class Number:
    """An evaluated expression: as printed, of what kind, and from which sources."""

    value: object
    text: str
    kind: str
    sources: tuple[str, ...]


def evaluate(expression: str, config: Config) -> Number:
    """Evaluate `EXPR -> FORMAT`. Raises whatever the expression raises."""
    code, arrow, form = expression.rpartition("->")
    if not arrow or not code.strip():
        raise ValueError(f"{expression!r} is not of the form 'EXPR -> FORMAT'")
    module = config.import_module(config.namespace) if config.namespace else None
    names = dict(vars(module)) if module else {}
    collect = names.get("collect_sources", lambda: contextlib.nullcontext([]))
    with collect() as sources:
        value = eval(compile(code.strip(), f"<{code.strip()}>", "eval"), names)
    kinds = {source.kind for source in sources}
    texts = tuple(dict.fromkeys(source.text for source in sources))
    if "pending" in kinds:
        return Number(value, PENDING, "pending", texts)
    if value is None or value != value:
        raise ValueError(f"{code.strip()!r} is {value!r}, which is no number to print")
    text = names.get("render", format)(value, form.strip())
    kind = next((k for k in KINDS if k in kinds), "computed")
    return Number(value, text, kind, texts)
