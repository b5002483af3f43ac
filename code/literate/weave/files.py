"""A page for each tangled file, linked with the blocks that it was woven from."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import groupby

from docutils import nodes

from ..book import Book, TangledFile

FOLDER = "files"


class tangled_file(nodes.Inline, nodes.TextElement):
    """A file's name; in a browser a link to its page."""


def file_link(target: str, anchor: str | None) -> nodes.Node:
    return tangled_file(target, target, target=target, anchor=anchor or "")


def _visit_html(translator, node) -> None:
    builder = translator.builder
    uri = builder.get_relative_uri(builder.current_docname, f"{FOLDER}/{node['target']}")
    anchor = f"#{node['anchor']}" if node["anchor"] else ""
    translator.body.append(f'<a class="tangled-file" href="{escape(uri + anchor)}">')


def _visit_epub(translator, node) -> None:
    translator.body.append('<code class="tangled-file">')


def _visit_latex(translator, node) -> None:
    translator.body.append(r"\sphinxcode{\sphinxupquote{")


def pages(app) -> Iterator[tuple[str, dict, str]]:
    """Sphinx's `html-collect-pages`: name, context and template of each extra page."""
    book: Book = app.literate_book
    if app.builder.name == "epub":
        return  # every block stands in its chapter
    for file in book.files.values():
        name = f"{FOLDER}/{file.target}"
        context = {
            "title": file.target,
            "body": _body(app, file, name),
            "metatags": "",
            "display_toc": False,
        }
        yield name, context, "page.html"


def _body(app, file: TangledFile, name: str) -> str:
    home = app.builder.get_relative_uri(name, file.page.removesuffix(".md"))
    parts = [
        f"<h1><code>{escape(file.target)}</code></h1>",
        f'<p>Tangled from <a href="{home}">{escape(file.page)}</a>, '
        "block by block; each heading leads to the place where the block is explained.</p>",
    ]
    owner: dict[int, int] = {}
    for line, (first, last) in file.spans.items():
        owner.update(dict.fromkeys(range(first, last + 1), line))
    numbered = [(n, owner.get(n)) for n in range(1, len(file.lines) + 1)]
    for page_line, group in groupby(numbered, key=lambda pair: pair[1]):
        numbers = [n for n, _ in group]
        if page_line is None:
            continue
        block = file.lines[numbers[0] - 1].block
        text = "\n".join(file.lines[n - 1].text for n in numbers)
        top = next(b for b in _blocks(app.literate_book, file) if b.line == page_line)
        anchor = nodes.make_id(top.name) if top.name else f"block-{top.line}"
        language = "python" if file.target.endswith(".py") else "text"
        code = app.builder.highlighter.highlight_block(
            text, language, linenos=False, location=block.path
        )
        parts.append(
            f'<div class="literal-block-wrapper docutils container" id="{anchor}">'
            f'<div class="code-block-caption"><a href="{home}#{anchor}">'
            f"{escape(top.name or f'line {top.line}')}</a></div>{code}</div>"
        )
    return "\n".join(parts)


def _blocks(book: Book, file: TangledFile):
    return book.page(file.page).blocks


def setup(app) -> None:
    app.add_node(
        tangled_file,
        html=(_visit_html, lambda t, n: t.body.append("</a>")),
        epub=(_visit_epub, lambda t, n: t.body.append("</code>")),
        latex=(_visit_latex, lambda t, n: t.body.append("}}")),
        text=(lambda t, n: None, lambda t, n: None),
    )
    app.connect("html-collect-pages", pages)
