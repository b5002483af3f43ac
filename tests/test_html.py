"""The woven book, opened from disk in a real browser with nobody to ask for anything."""

from __future__ import annotations

import re
import shutil
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
from bs4 import BeautifulSoup
from conftest import ROOT, require

HTML = ROOT / "_build/html"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or ""
PAGES = sorted(
    str(page.relative_to(ROOT).with_suffix(".html"))
    for folder in ("chapters", "glossary")
    for page in (ROOT / folder).rglob("*.md")
)


@pytest.fixture(autouse=True)
def woven():
    require("html", (HTML / "index.html").exists(), "the book is not woven: run `make html`")


@cache
def soup(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text("utf-8"), "html.parser")


@pytest.fixture(scope="module")
def browser():
    require("browser", bool(CHROMIUM), "no Chromium here")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield running
        running.close()


@pytest.fixture
def page(browser):
    """A page that remembers what it asked for and what it complained of."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.asked, page.complaints = [], []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("console", lambda m: m.type == "error" and page.complaints.append(m.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    yield page
    page.close()


def opened(page, name: str):
    file, _, query = name.partition("?")
    page.goto((HTML / file).as_uri() + (f"?{query}" if query else ""), wait_until="load")
    page.wait_for_timeout(300)
    return page


def off_disk(page) -> list[str]:
    return [url for url in page.asked if not url.startswith(("file:", "data:", "blob:"))]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_needs_nothing_but_the_disk(page, name):
    opened(page, name)
    assert off_disk(page) == []
    assert page.complaints == []


def test_the_front_page_leads_into_the_book(page):
    opened(page, "index.html")
    page.wait_for_url("**/chapters/index.html")
    assert "roofline" in page.title()


def test_formulas_are_set_from_bundled_files(page):
    opened(page, "chapters/01_gpu_architecture_tour.html")
    page.wait_for_selector("mjx-container", timeout=20000)
    assert page.locator("mjx-merror").count() == 0
    assert off_disk(page) == []


def test_search_works_from_disk(page):
    opened(page, "search.html?q=roofline")
    page.wait_for_selector("#search-results li a", timeout=20000)
    assert page.locator("#search-results li a").count() > 3
    assert off_disk(page) == []


def test_figures_take_the_page_colour_in_light_and_dark(page):
    opened(page, "chapters/01_gpu_architecture_tour.html")
    ink = "getComputedStyle(document.querySelector('.drawing svg')).color"
    colours = []
    for theme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        colours.append(page.evaluate(ink))
    assert colours[0] != colours[1]


@pytest.mark.parametrize("name", PAGES)
def test_no_page_scrolls_sideways_on_a_phone(browser, name):
    page = browser.new_page(viewport={"width": 360, "height": 740})
    opened(page, name)
    wide = page.evaluate("document.documentElement.scrollWidth")
    page.close()
    assert wide <= 360


def test_every_link_within_the_book_arrives():
    broken = []
    for path in HTML.rglob("*.html"):
        if "_static" in path.parts:
            continue
        for link in soup(path).select("a[href]"):
            href = link["href"]
            if re.match(r"[a-z]+:", href) or href in ("#", ""):
                continue
            name, _, anchor = href.partition("#")
            target = (path.parent / unquote(name)).resolve() if name else path
            if not target.exists() or (
                anchor and target.suffix == ".html" and not soup(target).find(id=unquote(anchor))
            ):
                broken.append(f"{path.relative_to(HTML)}: {href}")
    assert broken == []


def test_every_drawing_says_what_is_to_be_seen():
    for name in PAGES:
        for svg in soup(HTML / name).select(".drawing svg"):
            assert len(svg["aria-label"]) > 20


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_light(name):
    assert (HTML / name).stat().st_size < 1.5e6
