"""What the committed reports of proof say of a block, on the block itself."""

from __future__ import annotations

import datetime

from docutils import nodes

from ..records import Block
from ..reports import Reports, Status

_SAID = {
    "passed": "passed",
    "skipped": "not run",
    "failed": "failed",
    "changed": "changed since",
    "unknown": "no run yet",
}


class block_status(nodes.Inline, nodes.TextElement):
    """One report's word on a block; on paper and in an e-book, where it would age, nothing."""


def status_nodes(env, block: Block) -> list[nodes.Node]:
    """A mark for each report of the book, in the order of its settings."""
    reports: Reports = env.app.literate_reports
    for path in reports.paths.values():
        env.note_dependency(str(path))
    if block.language != "python":
        return []
    return [_mark(status) for status in reports.statuses(block)]


def _mark(status: Status) -> nodes.Node:
    date = _date(status.date)
    words = f"{status.label}: {_SAID[status.outcome]}"
    if status.outcome in ("passed", "failed", "changed"):
        words += f" {date}"
    told = {
        "passed": f"The committed report of {date} says that this block passed its test.",
        "skipped": f"Not run on {date}: {status.reason}.",
        "failed": f"The committed report of {date} says that this block failed.",
        "changed": f"Its text has changed since the run of {date}.",
        "unknown": "The committed report does not have this block.",
    }[status.outcome]
    return block_status(words, words, outcome=status.outcome, told=told)


def _date(iso: str) -> str:
    if not iso:
        return ""
    day = datetime.date.fromisoformat(iso)
    return f"{day.day} {day:%b %Y}"


def _visit_html(translator, node) -> None:
    # Not starttag: it would add a line break before the text.
    tag = translator.starttag(
        node, "span", "", CLASS=f"block-status status-{node['outcome']}", title=node["told"]
    )
    translator.body.append(tag)


def _skip(translator, node) -> None:
    raise nodes.SkipNode


def setup(app) -> None:
    app.add_node(
        block_status,
        html=(_visit_html, lambda t, n: t.body.append("</span>")),
        epub=(_skip, None),
        latex=(_skip, None),
        text=(_skip, None),
    )
