"""The woven book, opened from disk in a real browser with nobody to ask for anything."""

from __future__ import annotations

import os
import re
import shutil
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
from bs4 import BeautifulSoup
from conftest import ROOT, require

HTML = Path(os.environ.get("BOOK_HTML") or ROOT / "_build/html")
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
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
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


# -- accessibility --------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious(page, name, theme):
    from axe_playwright_python.sync_playwright import Axe

    page.emulate_media(color_scheme=theme)
    opened(page, name)
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    # What is folded away is not looked at, so everything is unfolded.
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    page.wait_for_timeout(300)
    found = Axe().run(page, context={"exclude": [["mjx-container"]]}).response["violations"]
    grave = [
        f"{each['id']}: {node['target']} {node.get('failureSummary', '')}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"][:3]
    ]
    assert grave == []


# -- cards ----------------------------------------------------------------------------------

CARDS = {  # what a link leads to, and a place where such a link stands
    "a term": ("02_triton_101_softmax", "a[href*='term-Triton']", "Triton is a language"),
    "an equation": ("02_triton_101_softmax", "a[href^='#equation-']", ""),
    "a citation": ("02_triton_101_softmax", "a[href*='bibliography.html#']", "Triton"),
    "a fragment": ("04_triton_flashattention", "a.fragment-ref", "Listing"),
    "a number": ("02_triton_101_softmax", ".num-measured", "Measured on NVIDIA H200"),
}


@pytest.mark.parametrize("how", ["mouse", "keyboard"])
@pytest.mark.parametrize("kind", CARDS)
def test_a_card_opens_by_mouse_and_by_keyboard(page, kind, how):
    name, link, words = CARDS[kind]
    opened(page, f"chapters/{name}.html")
    target = page.locator(f"article {link}.has-card").first
    target.scroll_into_view_if_needed()
    target.hover() if how == "mouse" else target.focus()
    card = page.locator(".tippy-box")
    card.wait_for(timeout=10000)
    assert words in card.inner_text()
    assert len(card.inner_html()) > 40
    page.keyboard.press("Escape")
    card.wait_for(state="detached", timeout=5000)
    assert off_disk(page) == [] and page.complaints == []


# -- the explorer ---------------------------------------------------------------------------

EXPLORER = "chapters/explorer.html"
READY = "[data-widget=roofline-explorer][data-ready]"


def test_the_explorer_computes_what_the_python_computes(page):
    from roofline import hardware, serving

    options, expected = [], []
    for model in map(serving.llm, serving.llms()):
        for card in ("T4", "H200", "B200", "MI300X"):
            row = hardware.gpu(card)
            for phase, batch, context, weights, kv, gpus in [
                ("decode", 1, 1, "bf16", "bf16", 1),
                ("decode", 64, 8192, "fp8", "bf16", 8),
                ("decode", 777, 131072, "fp4", "fp8", 2),
                ("prefill", 1, 4096, "bf16", "bf16", 4),
                ("prefill", 3, 100_000, "int4", "fp8", 1),
            ]:
                if any(layer.attention.heads % gpus for layer in model.layers):
                    continue
                if gpus > 1 and not row.nvlink:
                    continue
                both = {"weights": weights, "kv": kv, "gpus": gpus}
                if phase == "decode":
                    step = serving.decode_step(model, batch, context, **both)
                else:
                    step = serving.prefill_step(model, context, batch=batch, **both)
                least = serving.bound(step, row, weights=weights)
                room = serving.memory_budget(model, row, batch, context, **both)
                options.append(
                    {"model": model.name, "card": card, "phase": phase, "batch": batch,
                     "context": context, **both}
                )  # fmt: skip
                expected.append(
                    [step.flops, step.bytes, step.intensity, least.compute, least.memory,
                     least.link, least.seconds, least.throughput, least.ridge, room.total,
                     room.usable]
                )  # fmt: skip
    assert len(options) > 150
    opened(page, EXPLORER).wait_for_selector(READY)
    found = page.evaluate(
        """(all) => all.map((o) => {
          const m = window.rooflineModel, data = window.widgetData["roofline-explorer"];
          const model = data.models.find((each) => each.name === o.model);
          const gpu = data.gpus.find((each) => each.name === o.card);
          const step = (o.phase === "decode" ? m.decodeStep : m.prefillStep)(data, model, o);
          const b = m.bound(step, gpu, o.weights), room = m.budget(data, model, gpu, o);
          return [step.flops, step.bytes, step.intensity, b.compute, b.memory, b.link, b.seconds,
            b.throughput, b.ridge, room.total, room.usable];
        })""",
        options,
    )
    for option, want, have in zip(options, expected, found, strict=True):
        assert have == pytest.approx(want, rel=1e-9, abs=0), option


def test_the_explorer_knows_the_roofline_as_the_python_does(page):
    from roofline import hardware, model

    grid = [(row.name, dtype, 10 ** (e / 4)) for row in hardware.gpus() for dtype in row.peaks
            for e in range(-4, 17, 3)]  # fmt: skip
    opened(page, EXPLORER).wait_for_selector(READY)
    found = page.evaluate(
        """(grid) => grid.map(([name, dtype, intensity]) => {
          const gpu = window.widgetData["roofline-explorer"].gpus.find((g) => g.name === name);
          const m = window.rooflineModel;
          return [m.attainable(intensity, gpu.peaks[dtype], gpu.bandwidth),
                  m.ridge(gpu.peaks[dtype], gpu.bandwidth)];
        })""",
        grid,
    )
    for (name, dtype, intensity), have in zip(grid, found, strict=True):
        row = hardware.gpu(name)
        want = model.attainable(intensity, peak=row.peak(dtype), bandwidth=row.bandwidth)
        assert have == pytest.approx([want, model.ridge(row, dtype)], rel=1e-9)


def test_the_explorer_is_worked_by_keyboard_and_its_state_survives_a_reload(page):
    opened(page, EXPLORER).wait_for_selector(READY)
    said = page.locator(".explorer-said")
    before = said.inner_text()
    page.get_by_label("batch", exact=True).focus()
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    page.get_by_label("card", exact=True).select_option("B200")
    page.get_by_label("number format").select_option("fp8")
    after = said.inner_text()
    assert after != before and "B200 in fp8" in after and "64 ×" in after
    page.reload()
    page.wait_for_selector(READY)
    assert page.locator(".explorer-said").inner_text() == after
    assert page.get_by_label("batch", exact=True).input_value() == "24"
    assert off_disk(page) == [] and page.complaints == []


def test_the_explorer_survives_a_link_to_what_is_not_there(page):
    opened(page, EXPLORER)
    page.evaluate("location.hash = '#explore?card=Z80&dtype=fp2&serve=hal-9000&batch=x&kernels=q,,'")
    page.wait_for_timeout(200)
    assert "H200 in bf16" in page.locator(".explorer-said").inner_text()
    assert page.complaints == []


def test_without_scripts_a_figure_stands_in_the_explorers_place(browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((HTML / EXPLORER).as_uri())
    assert page.locator("#fig-explorer-figure svg").first.is_visible()
    assert not page.locator(".widget").first.is_visible()
    context.close()


# -- code -----------------------------------------------------------------------------------


def test_code_that_is_copied_is_the_code_that_is_tangled(browser):
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    opened(page, "chapters/03_triton_tiled_matmul.html")
    source = (ROOT / "code/roofline/matmul.py").read_text("utf-8")
    copied = 0
    for block in page.locator(".literal-block-wrapper:has(a.tangled-file)").all():
        if "roofline/matmul.py" not in block.locator("a.tangled-file").inner_text():
            continue
        if block.locator("a.fragment-ref").count():
            continue
        block.locator("button.copybtn").evaluate("(button) => button.click()")
        page.wait_for_timeout(150)
        assert page.evaluate("navigator.clipboard.readText()").strip("\n") in source
        copied += 1
        if copied == 5:
            break
    context.close()
    assert copied == 5


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
