"""Pictures in steps: their data are the Python's, and a keyboard walks through them."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from textwrap import dedent

import pytest
from conftest import ROOT, require
from test_weave import CONF, Woven
from web import CHROMIUM, HTML, launch, off_disk, opened, watched

pytest.importorskip("matplotlib")

from roofline.support import online_softmax, tile_walk
from roofline.tile_order import dram_reads, grouped_order, waves

# -- the walk over tiles -----------------------------------------------------------------


def simulated(group: int) -> int:
    """What the chapter's own simulation fetches, with a cache that keeps nothing for later."""
    rows, cols = tile_walk.GRID
    return dram_reads(
        rows, cols, tile_walk.DEPTH, tile=(1, 1), group=group, programs=tile_walk.PROGRAMS,
        cache=0, itemsize=1, slices=tile_walk.DEPTH,
    )  # fmt: skip


@pytest.mark.parametrize("group", tile_walk.GROUPS)
def test_the_walk_goes_where_the_kernels_function_goes(group):
    rows, cols = tile_walk.GRID
    stops = tile_walk.walk(group)
    taken = [tile for stop in stops for tile in stop.tiles]
    assert taken == [grouped_order(pid, rows, cols, group) for pid in range(rows * cols)]
    assert tile_walk.data()["tiles"][group] == taken
    for stop in stops:
        assert stop.tiles == tuple(taken[stop.since : stop.end])
        wave = taken[stop.first : stop.end]
        assert set(stop.rows) == {i for i, _ in wave} and set(stop.cols) == {j for _, j in wave}
        assert len(set(stop.rows)) == len(stop.rows) and len(set(stop.cols)) == len(stop.cols)
    assert [len(stop.tiles) for stop in stops[:17]] == [0] + 16 * [1]


@pytest.mark.parametrize("group", tile_walk.GROUPS)
def test_the_walk_fetches_what_the_chapters_simulation_fetches(group):
    stops = tile_walk.walk(group)
    assert stops[-1].fetched == simulated(group)
    for wave in range(len(list(waves(*tile_walk.GRID, group, tile_walk.PROGRAMS)))):
        its = [stop for stop in stops if stop.wave == wave and stop.end]
        before = max((stop.fetched for stop in stops if stop.wave < wave), default=0)
        panels = [len(stop.rows) + len(stop.cols) for stop in its]
        assert [stop.fetched - before for stop in its] == [tile_walk.DEPTH * n for n in panels]
        seen: list[tuple[str, int]] = []
        for stop in its:  # what is new was not there, and stays
            new = [("a", i) for i in stop.new[0]] + [("b", j) for j in stop.new[1]]
            assert not set(new) & set(seen)
            seen += new
            panels = [("a", i) for i in stop.rows] + [("b", j) for j in stop.cols]
            assert sorted(seen) == sorted(panels)


def test_the_group_that_is_shown_first_is_the_best_and_the_strips_save_nothing():
    fetched = {group: simulated(group) for group in tile_walk.GROUPS}
    assert min(fetched, key=fetched.get) == tile_walk.CHOSEN
    assert fetched[tile_walk.GRID[0]] == fetched[1]


@pytest.mark.parametrize("group", tile_walk.GROUPS[1:])
def test_words_of_the_walk_say_its_numbers(group):
    both = zip(tile_walk.walk(1), tile_walk.walk(group), tile_walk.says(group), strict=True)
    for plain, stop, lines in both:
        if not stop.end:
            continue
        for its, line in ((plain, lines[1]), (stop, lines[2])):
            assert line.endswith(f" {its.fetched} tiles so far.")
            if its.wave == 0:
                ((row, col),) = its.tiles
                assert f"takes row {row}, column {col}," in line
                told = re.findall(r"(row|column) (\d+) of [AB]", line)
                rows, cols = ([str(panel) for panel in new] for new in its.new)
                assert told == [("row", i) for i in rows] + [("column", j) for j in cols]


# -- one row of scores -------------------------------------------------------------------


def softmax_of(count: int) -> list[float]:
    """The weights of the first keys relative to their largest, by the definition."""
    row = sum(online_softmax.SCORES, ())[:count]
    return [math.exp(score - max(row)) for score in row]


def test_each_stop_of_the_row_is_the_definition_for_the_keys_seen_so_far():
    size, values = len(online_softmax.SCORES[0]), sum(online_softmax.VALUES, ())
    stops = online_softmax.stops()
    assert [stop.kind for stop in stops] == ["begin", *["shrink", "add"] * 4, "divide"]
    for stop in stops:
        if stop.kind not in ("add", "divide"):
            continue
        weights = softmax_of(size * (stop.block + 1))
        assert stop.m == max(sum(online_softmax.SCORES[: stop.block + 1], ()))
        assert stop.weights == pytest.approx(weights, rel=1e-12)
        assert stop.s == pytest.approx(sum(weights), rel=1e-12)
        for c, held in enumerate(stop.o):
            share = sum(w * v[c] for w, v in zip(weights, values, strict=False))
            assert held == pytest.approx(share, rel=1e-12)
            assert stop.out[c] == pytest.approx(share / sum(weights), rel=1e-12)
    assert stops[-1].out == pytest.approx(online_softmax.at_once(), rel=1e-12)


def test_shrinking_keeps_the_ratio_and_takes_all_weights_alike():
    stops = online_softmax.stops()
    seen = set()
    for before, stop in zip(stops, stops[1:], strict=False):
        if stop.kind != "shrink":
            continue
        assert stop.alpha == math.exp(before.m - stop.m)
        assert stop.weights == pytest.approx([stop.alpha * w for w in before.weights])
        if before.s:
            assert stop.out == pytest.approx(before.out, rel=1e-12)
            assert stop.larger == (before.weights if stop.alpha < 1 else ())
        seen.add("first" if not before.s else "stays" if stop.alpha == 1 else "rises")
    assert seen == {"first", "stays", "rises"}  # the row shows all there is to see


def test_the_row_is_what_the_chapters_kernel_computes():
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from roofline.attention import attention

    row = torch.tensor(sum(online_softmax.SCORES, ())).float()
    k = torch.stack([row, torch.zeros_like(row)], -1)[None, None]
    v = torch.tensor(sum(online_softmax.VALUES, ())).float()[None, None]
    q = torch.tensor([[[[1.0, 0.0]]]])
    out = attention(q, k, v, scale=1.0)[0, 0, 0].tolist()
    assert online_softmax.stops()[-1].out == pytest.approx(out, rel=1e-5)


def test_words_of_the_row_say_its_numbers():
    for stop in online_softmax.stops()[1:]:
        words = " ".join(stop.says)
        if stop.kind == "shrink" and 0 < stop.alpha < 1:
            before = max(sum(online_softmax.SCORES[: stop.block], ()))
            assert f"exp({before} − {stop.m})" in words
            assert f"= {stop.alpha:.3f}" in words and f"to {stop.s:.3f}" in words
        if stop.kind == "add":
            assert f"to {stop.s:.3f}" in words
            assert f"o / s = ({stop.out[0]:.3f}, {stop.out[1]:.3f})" in words
        if stop.kind == "divide":
            exact = ", ".join(f"{x:.6f}" for x in online_softmax.at_once())
            assert words.count(f"({exact})") == 2


# -- a figure that a widget takes the place of -------------------------------------------

PLAYED = """\
    # Page

    ````{widget} swing
    :label: A swing
    :needs: rope board
    :height: 300 200
    :figure:
    ```{code-block} python
    :name: rest
    :figure: A swing, on paper at rest.
    :alt: A line straight down.
    from matplotlib.figure import Figure
    figure = Figure()
    figure.subplots().plot([0, 0], [1, 0])
    ```
    ````
    """


def test_a_widget_in_a_figure_shares_its_number_and_caption(small):
    small.write("code/swings.py", "def data():\n    return {'length': 2}\n")
    conf = dedent(CONF) + 'literate_widgets = {"swing": "swings"}\nnumfig = True\n'
    woven = Woven(small, PLAYED, conf)
    assert woven.done.returncode == 0, woven.done.stderr
    page = woven.html()
    (figure,) = page.select("figure")
    assert figure["id"] == "fig-rest" and "Fig. 1" in figure.figcaption.text
    assert figure.select_one(".widget-fallback > .drawing > svg") is not None
    box = figure.select_one(".widget")
    assert box["data-widget"] == "swing" and box["aria-label"] == "A swing"
    assert box["style"] == "--height: 300px; --narrow: 200px"
    assert page.select_one(".widget-fallback details.figure-code") is not None  # draws paper's
    scripts = [Path(s["src"].partition("?")[0]).name for s in page.select("script[src]")]
    ours = ("rope.js", "board.js", "swing-data.js", "swing.js")
    assert [name for name in scripts if name in ours] == list(ours)
    data = (woven.base / "_build/html/_static/swing-data.js").read_text("utf-8")
    assert '["swing"] = {"length": 2};' in data


@pytest.mark.parametrize(
    ("body", "got"),
    [("Words alone.", "got paragraph"), ("", "got nothing")],
    ids=["words", "nothing"],
)
def test_a_widget_in_a_figure_that_is_none_is_refused(small, body, got):
    page = f"# Page\n\n````{{widget}} swing\n:figure:\n\n{body}\n````\n"
    woven = Woven(small, page)
    assert woven.done.returncode != 0
    said = woven.done.stderr
    assert "widget swing: with :figure: its body must begin with a code block that" in said
    assert got in said


# -- on the page -------------------------------------------------------------------------

STEPPERS = {
    "tile-walk": ("chapters/03_triton_tiled_matmul.html", "fig-matmul-figure-walk"),
    "online-softmax": ("chapters/04_triton_flashattention.html", "fig-attention-figure-fold"),
}
#: The step that a page opens with: one that shows at a glance what the figure is about.
OPENS = {"tile-walk": tile_walk.PROGRAMS, "online-softmax": 3}
MODULES = {"tile-walk": tile_walk, "online-softmax": online_softmax}


@pytest.fixture(scope="module")
def browser():
    require("html", (HTML / "index.html").exists(), "the book is not woven: run `make html`")
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
    assert off_disk(page) == [] and page.complaints == []
    page.close()


def stepper(page, name: str):
    """The stepper on its page, begun."""
    page.goto((HTML / STEPPERS[name][0]).as_uri(), wait_until="domcontentloaded")
    box = page.locator(f"[data-widget={name}][data-ready]")
    box.wait_for()
    return box


def says(name: str, step: int) -> str:
    if name == "tile-walk":
        return " ".join(tile_walk.says(tile_walk.CHOSEN)[step])
    return " ".join(online_softmax.stops()[step].says)


def picture(box) -> str:
    """Everything in the drawings that a step may change."""
    return box.evaluate("""(box) => [...box.querySelectorAll("svg *")].map((each) =>
      [...["class", "height", "y"].map((a) => each.getAttribute(a)), each.textContent]).join()""")


@pytest.mark.parametrize("name", STEPPERS)
def test_the_page_draws_from_the_data_of_the_python(page, name):
    stepper(page, name)
    found = page.evaluate(f"window.widgetData['{name}']")
    assert found == json.loads(json.dumps(MODULES[name].data()))


@pytest.mark.parametrize("name", STEPPERS)
def test_a_keyboard_steps_through_picture_and_words(page, name):
    box = stepper(page, name)
    said = box.locator("[aria-live=polite]")
    last = len(tile_walk.walk(1) if name == "tile-walk" else online_softmax.stops()) - 1
    assert said.text_content() == says(name, OPENS[name])
    box.locator("input[type=range]").focus()
    page.keyboard.press("Home")
    assert said.text_content() == says(name, 0)
    seen = [picture(box)]
    for step in range(1, last + 1):
        page.keyboard.press("ArrowRight")
        assert said.text_content() == says(name, step)
        seen.append(picture(box))
    assert len(set(seen)) == last + 1
    page.keyboard.press("ArrowRight")  # there is no further
    assert said.text_content() == says(name, last)
    page.keyboard.press("Home")
    assert said.text_content() == says(name, 0) and picture(box) == seen[0]
    page.keyboard.press("End")
    assert said.text_content() == says(name, last) and picture(box) == seen[last]
    page.keyboard.press("ArrowLeft")
    assert said.text_content() == says(name, last - 1) and picture(box) == seen[last - 1]


@pytest.mark.parametrize("name", STEPPERS)
def test_its_buttons_do_the_same_and_keep_the_focus(page, name):
    box = stepper(page, name)
    said = box.locator("[aria-live=polite]")
    last = int(box.locator("input[type=range]").get_attribute("max"))
    for word, there in (
        ("first", 0), ("next", 1), ("next", 2), ("back", 1), ("last", last), ("next", last),
        ("first", 0), ("back", 0),
    ):  # fmt: skip
        button = box.get_by_role("button", name=word, exact=True)
        button.focus()
        page.keyboard.press("Enter")
        assert said.text_content() == says(name, there), word
        assert button.evaluate("(button) => button === document.activeElement")
        for each, end in (("first", 0), ("back", 0), ("next", last), ("last", last)):
            found = box.get_by_role("button", name=each, exact=True).get_attribute("aria-disabled")
            assert found == str(there == end).lower()
    page.keyboard.press("ArrowRight")
    assert said.text_content() == says(name, 1)


def test_another_group_walks_another_way(page):
    box = stepper(page, "tile-walk")
    box.locator("input[type=range]").press("End")
    for group in tile_walk.GROUPS[1:]:
        box.get_by_label("rows in a group").select_option(str(group))
        said = box.locator("[aria-live=polite]").text_content()
        assert said == " ".join(tile_walk.says(group)[-1])
        counts = box.locator(".walk-count strong").all_text_contents()
        assert counts == [str(simulated(1)), str(simulated(group))]


def test_the_grids_show_the_tiles_and_panels_of_the_step(page):
    box = stepper(page, "tile-walk")
    for step in (1, 6, 16, 20):
        box.locator("input[type=range]").fill(str(step))
        for nth, group in enumerate((1, tile_walk.CHOSEN)):
            stop = tile_walk.walk(group)[step]
            drawn = box.locator("svg").nth(nth)
            assert drawn.locator(".tile.past").count() == stop.first
            assert drawn.locator(".tile.now, .tile.new").count() == stop.end - stop.first
            panels = len(stop.rows) + len(stop.cols)
            assert drawn.locator(".panel.held, .panel.new").count() == tile_walk.DEPTH * panels
            numbers = [t for t in drawn.locator(".walk-number").all_text_contents() if t]
            assert sorted(map(int, numbers)) == list(range(stop.first, stop.end))


def test_bars_are_as_tall_as_scores_and_weights(page):
    box = stepper(page, "online-softmax")
    row, stops = sum(online_softmax.SCORES, ()), online_softmax.stops()
    box.locator("input[type=range]").fill(str(len(stops) - 1))
    assert max(stops[-1].weights) == 1
    tall = """(box) => ["score", "weight", "larger"].map((kind) =>
      [...box.querySelectorAll(`.fold-${kind}`)].map((bar) => +bar.getAttribute("height")))"""
    one = max(box.evaluate(tall)[1])
    assert one > 50
    for step, stop in enumerate(stops):
        box.locator("input[type=range]").fill(str(step))
        scores, weights, larger = box.evaluate(tall)
        assert [h / scores[0] for h in scores] == pytest.approx([x / row[0] for x in row])
        for bars, expected in ((weights, stop.weights), (larger, stop.larger)):
            padded = [*expected, *[0] * (len(row) - len(expected))]
            assert bars == pytest.approx([one * w for w in padded], abs=1e-9)


@pytest.mark.parametrize("name", STEPPERS)
def test_nothing_moves_for_those_who_asked_for_that(page, name):
    box = stepper(page, name)
    lasts = "(box) => getComputedStyle(box.querySelector('svg rect')).transitionDuration"
    assert box.evaluate(lasts) != "0s"
    page.emulate_media(reduced_motion="reduce")
    assert box.evaluate(lasts) == "0s"


@pytest.mark.parametrize("name", STEPPERS)
def test_a_stepper_stays_in_the_room_kept_for_it(page, name):
    """So nothing below it moves, neither when it begins nor at any step."""
    box = stepper(page, name)
    for width in (320, 340, 360, 412, 600, 640, 720, 768, 1280, 1600):
        page.set_viewport_size({"width": width, "height": 800})
        page.evaluate("new Promise((done) => setTimeout(done, 100))")  # it has noticed
        kept, heights, sideways = box.evaluate("""(box) => {
          const range = box.querySelector("input[type=range]"), heights = [];
          for (let step = 0; step <= range.max; step++) {
            range.value = step;
            range.dispatchEvent(new Event("input"));
            heights.push(box.getBoundingClientRect().height);
          }
          const kept = parseFloat(getComputedStyle(box).minHeight);
          return [kept, heights, box.scrollWidth - box.clientWidth];
        }""")
        assert set(heights) == {kept}, (width, heights)
        assert sideways <= 0, width
        if width <= 412:
            assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", STEPPERS)
def test_without_scripts_and_on_paper_a_figure_stands_in_its_place(browser, name):
    file, figure = STEPPERS[name]
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((HTML / file).as_uri())
    still = page.locator(f"#{figure}")
    assert still.locator(".drawing svg").is_visible() and still.locator("figcaption").is_visible()
    assert not still.locator(".widget").is_visible()
    context.close()
    page = browser.new_page()
    box = stepper(page, name)
    assert box.is_visible() and page.locator(f"#{figure} figcaption").is_visible()
    assert not page.locator(f"#{figure} .drawing").is_visible()
    page.emulate_media(media="print")
    assert page.locator(f"#{figure} .drawing svg").is_visible() and not box.is_visible()
    page.close()


@pytest.mark.parametrize("name", STEPPERS)
def test_the_figure_is_in_the_book_on_paper(name):
    figure = STEPPERS[name][1]
    latex = Path(os.environ.get("BOOK_LATEX") or ROOT / "_build/latex")
    book = latex / "foundations.tex"
    require("tex", book.exists(), "the book is not set for paper: run `make pdf`")
    assert f"{{{{{figure}}}.pdf}}" in book.read_text("utf-8")
    assert (latex / f"{figure}.pdf").read_bytes().startswith(b"%PDF")
