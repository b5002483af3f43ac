"""The cover of the e-book: its title under the roofs of every card of the table.

It follows the table: a card that is added there stands on the cover of the next build.
"""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from roofline.hardware import gpus
from roofline.support.figures import PALETTE

#: Pixels, in the proportions that shelves of e-books are made for.
WIDTH, HEIGHT = 1600, 2400
GROUND, LIGHT = "#10151f", "#ffffff"


def draw(title: str, author: str) -> Figure:
    """The cover; what follows a colon in the title is set smaller, as a subtitle."""
    figure = Figure(figsize=(WIDTH / 200, HEIGHT / 200), dpi=200, facecolor=GROUND)
    axes = figure.add_axes((0, 0.1, 1, 0.5))
    axes.set_axis_off()
    left, right = 1, 20_000
    for card in gpus():
        peak = max((card.peak(dtype) for dtype in ("bf16", "fp16") if dtype in card.peaks), default=None)
        if peak is None:
            continue
        ours = card.name == "H200"  # the card that the book was measured on
        axes.loglog(
            (left, peak / card.bandwidth, right), (left * card.bandwidth, peak, peak),
            color=PALETTE["orange"] if ours else LIGHT, lw=5 if ours else 1.2,
            alpha=1 if ours else 0.35, zorder=2 if ours else 1,
        )  # fmt: skip
    axes.set_xlim(left, right)
    name, _, rest = title.partition(": ")
    figure.text(0.08, 0.86, name, color=LIGHT, fontsize=46, fontweight="bold", va="center")
    figure.text(0.08, 0.79, rest.replace(" and ", "\nand "), color=LIGHT, fontsize=22, va="center", linespacing=1.4)
    figure.add_artist(Line2D((0.08, 0.3), (0.73, 0.73), color=PALETTE["orange"], lw=3))
    figure.text(0.08, 0.05, author, color=LIGHT, fontsize=15, va="center")
    return figure
