"""The woven book, opened from disk in a real browser with nobody to ask for anything."""

from __future__ import annotations

import re
from functools import cache
from urllib.parse import unquote

import pytest
from bs4 import BeautifulSoup
from conftest import ROOT, require
from web import (
    CHROMIUM, HTML, PAGES, WRITTEN, Visit, anchors, launch, look, off_disk, opened, visit, watched,
)  # fmt: skip


@pytest.fixture(autouse=True)
def woven():
    require("html", (HTML / "index.html").exists(), "the book is not woven: run `make html`")


@pytest.fixture(scope="module")
def browser():
    require("browser", bool(CHROMIUM), "no Chromium here")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = launch(playwright)
        yield running
        running.close()


@pytest.fixture
def page(browser):
    page = watched(browser.new_page(viewport={"width": 1280, "height": 900}))
    yield page
    page.close()


@pytest.fixture(scope="module")
def visits(browser):
    """What there was to see on a page, looked at once."""
    page = watched(browser.new_page())

    @cache
    def of(name: str) -> Visit:
        return visit(page, name)

    yield of
    page.close()


# -- every page -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_a_page_needs_nothing_but_the_disk(visits, name):
    assert visits(name).asked == []
    assert visits(name).complaints == []


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious_in_light_or_dark(visits, name):
    assert visits(name).grave == []


@pytest.mark.parametrize("name", PAGES)
def test_no_page_scrolls_sideways(visits, name):
    """On a phone, and where the column of the page's contents has just come beside the text."""
    assert visits(name).wider == {}


@pytest.mark.parametrize("name", PAGES)
def test_nothing_jumps_while_a_page_loads(visits, name):
    """What the Core Web Vitals call good; idle machines see less than 0.02 here."""
    assert visits(name).shift < 0.1


@pytest.mark.parametrize("name", PAGES)
def test_every_formula_is_set(visits, name):
    assert visits(name).formula_errors == 0


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_light(name):
    assert (HTML / name).stat().st_size < 1.5e6


def test_axe_is_not_blind(page):
    """What is left out to save time hides no fault of the kinds that it is there to find."""
    opened(page, "chapters/symbols.html")
    page.evaluate("""document.querySelector("article").insertAdjacentHTML("beforeend", `
      <p style="color: #999; background: #fff">pale</p><p class="new">dim in the dark</p><button></button>
      <style>html[data-theme="dark"] p.new { color: #333 }</style>
      <div class="highlight-python"><div class="highlight"><pre><span class="zz"
        style="color: #eee">pale</span></pre></div></div>`)""")
    found = "\n".join(look(page))
    assert "button-name: <button>" in found
    for pale in ("light: color-contrast: <p style", "dark: color-contrast: <p class=\"new\"",
                 "light: color-contrast: <span class=\"zz\""):  # fmt: skip
        assert pale in found


# -- the book as a whole --------------------------------------------------------------------


def test_the_front_page_leads_into_the_book(page):
    page.goto((HTML / "index.html").as_uri())
    page.wait_for_url("**/chapters/index.html")
    assert "roofline" in page.title()


def test_formulas_are_set_from_bundled_files(page):
    opened(page, "chapters/01_gpu_architecture_tour.html")
    page.wait_for_selector("mjx-container", timeout=20000)
    assert off_disk(page) == []


@pytest.mark.parametrize(
    ("words", "arrives"),
    [("roofline", "chapters/"), ("online softmax", "02_triton"), ("matmul_kernel", "03_triton")],
)
def test_search_finds_terms_and_names_in_code(page, words, arrives):
    opened(page, f"search.html?q={words.replace(' ', '+')}")
    page.wait_for_selector("#search-results li a", timeout=20000)
    links = [a.get_attribute("href") for a in page.locator("#search-results li a").all()]
    assert any(arrives in link for link in links), links
    assert off_disk(page) == []


def test_figures_take_the_page_colour_in_light_and_dark(page):
    opened(page, "chapters/01_gpu_architecture_tour.html")
    ink = "getComputedStyle(document.querySelector('.drawing svg')).color"
    colours = []
    for theme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        colours.append(page.evaluate(ink))
    assert colours[0] != colours[1]


def test_every_link_within_the_book_arrives():
    broken = []
    for path in HTML.rglob("*.html"):
        if "_static" in path.parts:
            continue
        for href in anchors(path).links:
            if re.match(r"[a-z]+:", href) or href == "#":
                continue
            name, _, place = href.partition("#")
            target = (path.parent / unquote(name)).resolve() if name else path
            if not target.exists() or (
                place and target.suffix == ".html" and unquote(place) not in anchors(target).places
            ):
                broken.append(f"{path.relative_to(HTML)}: {href}")
    assert broken == []


def test_every_drawing_says_what_is_to_be_seen():
    found = 0
    for name in WRITTEN:
        text = (HTML / name).read_text("utf-8")
        for svg in re.findall(r'<div class="drawing"><svg[^>]*>', text):
            said = BeautifulSoup(svg, "html.parser").svg["aria-label"]
            assert len(said) > 20, (name, svg)
            found += 1
    assert found > 20


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
    page.wait_for_selector(READY)
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
