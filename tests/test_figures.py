"""The style of figures: colours that can be told apart, ink that can be replaced."""

from __future__ import annotations

import io
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("matplotlib")

from roofline.support import figures
from roofline.support.figures import Ceiling, Line, Point

LIGHT, DARK = "#ffffff", "#121212"

#: Linear RGB as three kinds of colour-blind readers see it (Machado et al., 2009).
SEEN = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red cones": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "no green cones": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "no blue cones": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def linear(color: str) -> list[float]:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def apply(matrix, color):
    return [sum(m * c for m, c in zip(row, color, strict=True)) for row in matrix]


XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))


def lab(rgb) -> tuple[float, float, float]:
    white = (0.9505, 1.0, 1.089)
    xyz = apply(XYZ, [min(max(c, 0), 1) for c in rgb])
    x, y, z = (
        t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116
        for t in (c / w for c, w in zip(xyz, white, strict=True))
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def contrast(one: str, other: str) -> float:
    low, high = sorted(apply(XYZ, linear(c))[1] for c in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", figures.PALETTE)
@pytest.mark.parametrize("page", [LIGHT, DARK])
def test_colours_stand_out_on_light_and_dark_pages(name, page):
    assert contrast(figures.PALETTE[name], page) >= 3


@pytest.mark.parametrize("reader", SEEN)
def test_colours_of_data_are_told_apart(reader):
    seen = [lab(apply(SEEN[reader], linear(color))) for color in figures.COLORS]
    for one, other in itertools.combinations(seen, 2):
        assert sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5 > 25


def test_colours_of_data_differ_in_grey_print():
    lightness = sorted(lab(linear(color))[0] for color in figures.COLORS)
    assert min(b - a for a, b in itertools.pairwise(lightness)) > 3


def svg(figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def roofline():
    return figures.roofline_axes(
        [Ceiling("copy", 4.3e12, measured=True), Ceiling("HBM", 4.8e12)],
        [Ceiling("bf16", 700e12, measured=True), Ceiling("bf16, datasheet", 989e12)],
        [Point("softmax", 1.2, 5e12), Point("predicted", 1.2, 5.2e12, measured=False)],
    )


def over_sizes():
    return figures.lines(
        {
            "ours": Line([256, 1024, 4096], [1e12, 3e12, 4e12], strong=True),
            "torch": {256: 1e12, 1024: 1.5e12, 4096: 2e12},
            "bound": Line([256, 4096], [4.2e12, 4.2e12], measured=False),
        },
        xlabel="columns",
        unit="B/s",
        limit=("copy", 4.3e12),
    )


@pytest.mark.parametrize("draw", [roofline, over_sizes])
class TestSvg:
    def test_text_is_text_in_ink(self, draw):
        text = svg(draw()[0])
        assert "<text" in text
        # Whatever is no data is drawn in INK: nothing is left black by default.
        assert figures.INK in text
        assert not re.search(r"#000000|fill: black", text)
        assert re.findall(r"<text[^>]*fill: ?#010203", text) or "fill: #010203" in text

    def test_has_no_ground(self, draw):
        assert "#ffffff" not in svg(draw()[0])

    def test_is_the_same_every_time(self, draw):
        assert svg(draw()[0]) == svg(draw()[0])


def texts(axes) -> list[str]:
    return [text.get_text() for text in axes.texts if text.get_text()]


def test_a_roofline_names_its_ceilings_its_points_and_its_ridge():
    _, axes = roofline()
    assert {
        "copy, 4.30 TB/s",
        "HBM, 4.80 TB/s",
        "bf16\n700 TFLOP/s",
        "bf16, datasheet\n989 TFLOP/s",
        "ridge: 163 FLOP/B",
        "softmax",
        "predicted",
    } == set(texts(axes))


def test_measured_is_solid_and_filled_and_predicted_dashed_and_hollow():
    _, axes = roofline()
    styles = {line.get_label(): line.get_linestyle() for line in axes.lines}
    assert (styles["copy"], styles["HBM"]) == ("-", "--")
    marks = [line for line in axes.lines if line.get_marker() == "o"]
    assert [line.get_markerfacecolor() == "none" for line in marks] == [False, True]


def test_lines_are_named_at_their_ends_and_count_in_one_unit():
    _, axes = over_sizes()
    assert set(texts(axes)) == {"ours", "torch", "bound", "copy"}
    assert axes.get_ylabel() == "throughput (TB/s)"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["256", "1k", "4k"]


def test_a_roofline_wants_both_kinds_of_ceiling():
    with pytest.raises(ValueError, match="at least one memory and one compute"):
        figures.roofline_axes([], [Ceiling("bf16", 1e15)])


@given(st.lists(st.floats(0, 1), max_size=8).map(sorted), st.floats(0.001, 0.2))
def test_labels_are_pushed_apart_and_no_further(wanted, apart):
    placed = figures.spread_out(wanted, apart)
    assert len(placed) == len(wanted)
    assert all(b - a >= apart - 1e-9 for a, b in itertools.pairwise(placed))
    if all(b - a > apart for a, b in itertools.pairwise(wanted)):
        assert placed == wanted
