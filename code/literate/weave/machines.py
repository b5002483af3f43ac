"""What machines read: `llms.txt` always; a sitemap and link previews where the book has an address.

`html_baseurl` is that address. Without one nothing on a page pretends to be somewhere.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from docutils import nodes


def _first(doctree: nodes.document, longest: int = 300) -> str:
    """What a page says first, in whole words."""
    for paragraph in doctree.findall(nodes.paragraph):
        text = " ".join(paragraph.astext().split())
        if len(text) > 40:
            if len(text) > longest:
                text = text[:longest].rsplit(" ", 1)[0] + " …"
            return text
    return ""


def _pages(app) -> list[tuple[str, str, str]]:
    """Name, title and first words of each written page, in reading order."""
    env, order, waiting = app.env, [], [app.config.root_doc]
    while waiting:
        name = waiting.pop(0)
        if name not in order and name in env.titles:
            order.append(name)
            waiting = [*env.toctree_includes.get(name, []), *waiting]
    order += sorted(set(env.found_docs) - set(order))
    return [(n, env.titles[n].astext(), _first(env.get_doctree(n))) for n in order]


def _preview(app, pagename, templatename, context, doctree) -> None:
    base = app.config.html_baseurl
    if not base or doctree is None or app.builder.name != "html":
        return
    told = {
        "og:type": "article",
        "og:site_name": app.config.project,
        "og:title": doctree.next_node(nodes.title).astext() if doctree.next_node(nodes.title) else "",
        "og:description": _first(doctree),
        "og:url": f"{base.rstrip('/')}/{app.builder.get_target_uri(pagename)}",
    }
    tags = "".join(
        f'<meta property="{name}" content="{escape(text)}" />\n' for name, text in told.items() if text
    )
    context["metatags"] = context.get("metatags", "") + tags


def _write(app, exception) -> None:
    if exception is not None or app.builder.name != "html":
        return
    base = app.config.html_baseurl.rstrip("/")
    out, uri = Path(app.outdir), app.builder.get_target_uri
    lines = [f"# {app.config.project}", ""]
    pages = _pages(app)
    for name, title, first in pages:
        address = f"{base}/{uri(name)}" if base else uri(name)
        lines.append(f"- [{title}]({address})" + (f": {first}" if first else ""))
    (out / "llms.txt").write_text("\n".join(lines) + "\n", "utf-8")
    if base:
        places = "".join(f"<url><loc>{escape(f'{base}/{uri(n)}')}</loc></url>\n" for n, _, _ in pages)
        (out / "sitemap.xml").write_text(
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n' + places + "</urlset>\n",
            "utf-8",
        )


def setup(app) -> None:
    app.connect("html-page-context", _preview, priority=900)
    app.connect("build-finished", _write)
