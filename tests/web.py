"""The woven book in a real browser: each page is opened once and looked at from all sides.

Axe takes time for every element, and a page of code has thousands that are alike. So it
looks at one piece of code of each kind, at no formula (MathJax brings its own speech) and
at nothing inside a drawing, which is an image with a label. Colours are then looked at
in light and in dark, on one text of each look.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

from conftest import ROOT

HTML = Path(os.environ.get("BOOK_HTML") or ROOT / "_build/html").resolve()
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or ""
#: Pages that somebody wrote, and one of each kind that Sphinx adds.
WRITTEN = sorted(
    str(page.relative_to(ROOT).with_suffix(".html"))
    for folder in ("chapters", "glossary")
    for page in (ROOT / folder).rglob("*.md")
)
PAGES = [*WRITTEN, "files/roofline/softmax.py.html", "genindex.html", "search.html"]

#: Of code, one piece of each kind; of formulas and drawings, that there is one.
#: It looks first and changes after, or the browser lays the page out again at every step.
THIN = """() => {
  const still = document.createElement("style");
  still.textContent = "* { transition: none !important; animation: none !important; }";
  document.head.append(still);
  for (const each of document.querySelectorAll("details")) each.open = true;
  for (const each of document.querySelectorAll("mjx-container")) each.replaceWith("x");
  for (const each of document.querySelectorAll(".drawing svg")) each.replaceChildren();
  const seen = new Set(), alike = [];
  for (const pre of document.querySelectorAll("div[class^=highlight] pre")) {
    const ground = getComputedStyle(pre).backgroundColor;
    for (const span of pre.querySelectorAll("span")) {
      if (seen.has(span.className + ground)) alike.push(span);
      else seen.add(span.className + ground);
    }
  }
  for (const span of alike) span.replaceWith(...span.childNodes);
}"""
#: Only for colours: of text that looks alike in alike places, the first.
ALIKE = """() => {
  const seen = new Set(), alike = [], grounds = new Map();
  const place = (each) => {
    if (!grounds.has(each)) {
      const above = each.parentElement ? place(each.parentElement) : "";
      const own = each.tagName + "." + each.className + (each.getAttribute("style") || "");
      const ground = getComputedStyle(each).backgroundColor;
      grounds.set(each, above.replace(/( SECTION\\.[^ ]*)+$/, " SECTION.") + " " + own + ground);
    }
    return grounds.get(each);
  };
  for (const each of document.querySelectorAll("body *")) {
    if (!each.textContent.trim() || each.querySelector("*")) continue;
    const kind = place(each) + getComputedStyle(each).color;
    if (seen.has(kind)) alike.push(each);
    else seen.add(kind);
  }
  for (const each of alike) each.remove();
}"""
SHIFTS = """() => new Promise((done) => {
  let sum = 0;
  const watcher = new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput) sum += entry.value;
  });
  watcher.observe({ type: "layout-shift", buffered: true });
  setTimeout(() => done(sum), 50);
})"""


@dataclass
class Visit:
    """What a page did, and what was wrong with it."""

    asked: list[str] = field(default_factory=list)  # addresses off the disk
    complaints: list[str] = field(default_factory=list)  # what the console said
    shift: float = 0  # how far things jumped, as browsers count it
    formula_errors: int = 0
    wider: dict[int, int] = field(default_factory=dict)  # the page's width, by the screen's
    grave: list[str] = field(default_factory=list)  # serious and critical findings of axe


def launch(playwright):
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    return playwright.chromium.launch(executable_path=CHROMIUM, args=flags)


def watched(page):
    """The page, with a record of what it asks for and complains of."""
    page.asked, page.complaints = [], []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("console", lambda m: m.type == "error" and page.complaints.append(m.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    return page


def off_disk(page) -> list[str]:
    return [url for url in page.asked if not url.startswith(("file:", "data:", "blob:"))]


def opened(page, name: str):
    """Go there, and wait until its formulas are set."""
    file, mark, query = name.partition("?")
    page.goto((HTML / file).as_uri() + mark + query, wait_until="load")
    page.evaluate("window.MathJax?.startup?.promise?.then(() => 0)")
    return page


def visit(page, name: str) -> Visit:
    """Everything there is to see on a page, in an order in which nothing disturbs the next."""
    page.asked.clear()
    page.complaints.clear()
    page.set_viewport_size({"width": 1280, "height": 900})
    opened(page, name)
    seen = Visit(shift=page.evaluate(SHIFTS))
    seen.formula_errors = page.locator("mjx-merror").count()
    for width in (360, 1200, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        there = page.evaluate("document.documentElement.scrollWidth")
        if there > width:
            seen.wider[width] = there
    seen.asked, seen.complaints = off_disk(page), list(page.complaints)
    seen.grave = look(page)
    return seen


def look(page) -> list[str]:
    """What axe finds serious or critical, in light and in dark. The page is spent then."""
    page.evaluate(THIN)
    grave = axe(page, rules={"color-contrast": {"enabled": False}})
    page.evaluate(ALIKE)
    for theme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        grave += [f"{theme}: {finding}" for finding in axe(page, runOnly=["color-contrast"])]
    return grave


def axe(page, **options) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe

    # Styles have been loaded; to fetch them again from a file is not allowed.
    options |= {"resultTypes": ["violations"], "preload": False}
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{each['id']}: {node['html']} {node.get('failureSummary', '')}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"][:3]
    ]


class Anchors(HTMLParser):
    """The links of a page and the places on it: no tree, for large pages take long to grow."""

    def __init__(self):
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.places.update(attributes[a] for a in ("id", "name") if attributes.get(a))
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])


@cache
def anchors(path: Path) -> Anchors:
    parser = Anchors()
    parser.feed(path.read_text("utf-8"))
    return parser
