"""Names and roles for those who hear the page, where the theme and the writer leave them out."""

from __future__ import annotations

from functools import cache


def _named(draw):
    """The sidebar's tree, where the arrow beside a page with pages under it has a name."""

    @cache
    def tree(*arguments, **options):
        soup = draw(*arguments, **options)
        for toggle in soup.select("li.has-children > details > summary"):
            page = toggle.find_parent("li").find("a")
            title = page.get_text(" ", strip=True) if page else "this part"
            toggle["aria-label"] = f"Pages under {title}"
        return soup

    return tree


def _wrap(app, pagename, templatename, context, doctree) -> None:
    draw = context.get("generate_toctree_html")  # of pydata's themes; others draw their own
    if draw is not None:
        context["generate_toctree_html"] = _named(draw)
    # Docutils writes a role that ARIA has given up, and that lists then do not know.
    if "body" in context:
        context["body"] = context["body"].replace('role="doc-biblioentry"', 'role="listitem"')


def setup(app) -> None:
    app.connect("html-page-context", _wrap, priority=900)
