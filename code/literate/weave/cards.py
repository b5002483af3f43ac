"""Hover cards: what a link leads to, shown where the link stands.

A card for something on the same page is read from the page itself. For a target on
another page, the small piece of HTML that a card shows is kept in a script beside the
pages, `_static/cards/PAGE.js`, so that it works from a disk, where nothing can be
fetched. The pages are read as they were written, so that a build of one page alone
leaves the others' cards whole.
"""

from __future__ import annotations

import json
import posixpath
import re
from html import escape
from pathlib import Path

from bs4 import BeautifulSoup, Tag

SCRIPTS = ("vendor/popper.min.js", "vendor/tippy.min.js", "cards.js")
FOLDER = "cards"
#: What is shown whole; anything else is shown by the paragraph that holds it.
_WHOLE = ("figure", "div", "table", "li")


def _add_scripts(app, pagename, templatename, context, doctree) -> None:
    if app.builder.format != "html" or app.builder.name == "epub" or doctree is None:
        return
    # Not by add_js_file: it would hash the file of the build before.
    file = context["pathto"](f"_static/{FOLDER}/{pagename}.js", True)
    context["metatags"] += f'<script defer src="{escape(file)}"></script>\n'
    for script in SCRIPTS:
        app.add_js_file(script, loading_method="defer")


def _write(app, exception) -> None:
    if exception or app.builder.name != "html":
        return
    out = Path(app.outdir)
    mathjax = json.dumps(getattr(app.config, "mathjax_path", ""))
    formulas = f"window.literateMathjax = {mathjax};\n"
    soups = {}
    for name in sorted(app.env.found_docs):
        file = out / f"{name}.html"
        if file.is_file():
            # All links that get a card and all targets stand there, and parsing is slow.
            html = file.read_text("utf-8")
            article = html[max(html.find("<article"), 0) : html.rfind("</article>") + 1]
            soups[name] = BeautifulSoup(article, "html.parser")
    targets = {name: {t["id"]: t for t in soup.find_all(id=True)} for name, soup in soups.items()}
    for name, soup in soups.items():
        cards = {}
        for link in soup.select("article a[href]"):
            href = str(link["href"])
            path, _, anchor = href.partition("#")
            if not path.endswith(".html") or ":" in path:
                continue
            page = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))[:-5]
            if page == name or page not in targets or href in cards:
                continue
            target = targets[page].get(anchor) if anchor else soups[page].select_one("article h1")
            html = _card(target) if target is not None else None
            if html:
                cards[href] = _moved(html, posixpath.dirname(path))
        file = out / "_static" / FOLDER / f"{name}.js"
        file.parent.mkdir(parents=True, exist_ok=True)
        # "</" would end a script that is pasted into a page.
        data = json.dumps(dict(sorted(cards.items())), ensure_ascii=False).replace("</", "<\\/")
        file.write_text(f"window.literateCards = {data};\n{formulas}", "utf-8")


def _card(target: Tag) -> str | None:
    """The piece of HTML that shows what the target is."""
    if target.name == "dt":
        definition = target.find_next_sibling("dd")
        return f"{target}{definition or ''}"
    if target.name == "span" and not target.get_text(strip=True):
        target = target.find_next(("section", *_WHOLE)) or target
    heading = target if target.name == "h1" else None
    if target.name == "section":
        heading = target.find(re.compile("^h[1-6]$"))
    if heading is not None:
        first = heading.find_next_sibling("p")
        return f"{heading}{first or ''}"
    return str(target) if target.name in _WHOLE else None


def _moved(html: str, folder: str) -> str:
    """The same HTML on a page from which its own lies in `folder`; nothing claims an id."""
    soup = BeautifulSoup(html, "html.parser")
    for tag in soup.select(".headerlink, script, button"):
        tag.decompose()
    for tag in soup.find_all(True):
        tag.attrs.pop("name", None)
        if tag.name not in ("svg",) and tag.find_parent("svg") is None:
            tag.attrs.pop("id", None)
        for attribute in ("href", "src"):
            value = tag.get(attribute)
            if value and not re.match(r"[a-z]+:|#", str(value)) and tag.name in ("a", "img"):
                tag[attribute] = posixpath.normpath(posixpath.join(folder, str(value)))
            elif value and tag.name == "a" and str(value).startswith("#"):
                del tag[attribute]
    return str(soup)


def setup(app) -> None:
    app.connect("html-page-context", _add_scripts)
    app.connect("build-finished", _write)
