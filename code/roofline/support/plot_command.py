"""`python -m roofline plot`: GPUs and kernels on one roofline, as SVG, PNG or HTML."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from roofline.hardware import DTYPES, GPU
from roofline.model import attainable
from roofline.support import storage
from roofline.support.format import quantity
from roofline.support.record import Record
from roofline.support.results import Result, all_results

KINDS = (".svg", ".png", ".html")


@dataclass(frozen=True)
class Roof:
    """One GPU's two ceilings in one number format."""

    name: str
    dtype: str
    peak: float
    bandwidth: float

    @property
    def ridge(self) -> float:
        return self.peak / self.bandwidth


@dataclass(frozen=True)
class Spot:
    """A kernel: FLOPs, bytes, and seconds if it was measured."""

    name: str
    flops: float
    bytes: float
    seconds: float | None = None
    on: str | None = None  # the GPU it was measured on; None for a point of one's own

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes


def roof_of(gpu: GPU, dtype: str | None) -> Roof:
    """The roof of `dtype`; without one, of bf16, or fp16 on a GPU without it."""
    if dtype is None:
        dtype = "bf16" if "bf16" in gpu.peaks else "fp16"
    return Roof(gpu.name, dtype, gpu.peak(dtype), gpu.bandwidth)


def parse_point(text: str) -> Spot:
    """'name,flops,bytes,seconds'; a ValueError says what is wrong."""
    parts = [part.strip() for part in text.rsplit(",", 3)]
    if len(parts) != 4 or not parts[0]:
        raise ValueError(f"point must be name,flops,bytes,seconds; got {text!r}")
    numbers = []
    for label, part in zip(("flops", "bytes", "seconds"), parts[1:], strict=True):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise ValueError(
                f"{label} of point {parts[0]!r} must be a number above 0, got {part!r}"
            )
        numbers.append(value)
    return Spot(parts[0], *numbers)


def kernel_of(record: Record, text: str) -> Spot:
    """'softmax' or 'softmax:cols=8192': the result of the record, its largest case."""
    id, _, wanted = text.partition(":")
    sizes = dict(part.partition("=")[::2] for part in wanted.split(",") if part)
    found = [result for result in all_results(record, id) if _agrees(result, sizes)]
    if not found:
        have = sorted({result.id for result in all_results(record)})
        raise ValueError(
            f"the record of {record.device.name} holds no {text!r}; it holds "
            f"{', '.join(have)}"
        )
    best = max(found, key=lambda result: result.measurement.work)
    if not best.flops:
        raise ValueError(f"{id!r} does no FLOPs, so it has no place on a roofline")
    name = f"{best.id} {best.name}"
    return Spot(name, best.flops, best.bytes, best.seconds, record.device.name)


def _agrees(result: Result, sizes: dict[str, str]) -> bool:
    known = {**result.case, "dtype": result.dtype}
    return all(str(known.get(key)) == value for key, value in sizes.items())


def draw(
    gpus: Sequence[GPU],
    *,
    dtype: str | None = None,
    kernels: Sequence[str] = (),
    points: Sequence[str] = (),
    device: str = "NVIDIA H200",
    output: Path,
) -> dict[str, Any]:
    """Draw into `output` and give back what was drawn, as plain data.

    Raises ValueError or LookupError for what cannot be drawn, ImportError without
    matplotlib (for SVG and PNG).
    """
    if output.suffix not in KINDS:
        raise ValueError(f"output must end in {', '.join(KINDS)}; got {str(output)!r}")
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}")
    roofs = [roof_of(gpu, dtype) for gpu in dict.fromkeys(gpus)]
    spots = [parse_point(text) for text in points]
    if kernels:
        record = storage.load(storage.path_for(device))
        spots += [kernel_of(record, text) for text in kernels]
    names = {gpu.name: gpu.devices for gpu in gpus}
    data = {
        "roofs": [{**asdict(roof), "ridge": roof.ridge} for roof in roofs],
        "points": [_as_data(spot, roofs, names) for spot in spots],
        "output": str(output),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    if output.suffix == ".html":
        output.write_text(_page(data), encoding="utf-8")
    else:
        _figure(data).savefig(output, dpi=192, **_metadata(output))
    return data


def _as_data(
    spot: Spot, roofs: Sequence[Roof], names: dict[str, tuple[str, ...]]
) -> dict[str, Any]:
    return {
        "name": spot.name,
        "flops": spot.flops,
        "bytes": spot.bytes,
        "intensity": spot.intensity,
        "seconds": spot.seconds,
        "throughput": spot.flops / spot.seconds if spot.seconds else None,
        "on": next((n for n, devices in names.items() if spot.on in devices), spot.on),
        "attainable": {
            roof.name: attainable(
                spot.intensity, peak=roof.peak, bandwidth=roof.bandwidth
            )
            for roof in roofs
        },
    }


def _metadata(output: Path) -> dict[str, Any]:
    """Without a date an SVG of the same data is the same file."""
    return {"metadata": {"Date": None}} if output.suffix == ".svg" else {}


def bounds_of(data: dict[str, Any]) -> tuple[tuple[float, float], tuple[float, float]]:
    """The axes: what all roofs and points need, in whole decades."""
    x = [roof["ridge"] for roof in data["roofs"]]
    x += [point["intensity"] for point in data["points"]]
    left, right = 10 ** math.floor(math.log10(min(x) / 8)), 10 * max(x)
    y = [roof["peak"] for roof in data["roofs"]]
    y += [p["throughput"] for p in data["points"] if p["throughput"]]
    low = [left * roof["bandwidth"] for roof in data["roofs"]]
    low += [p["throughput"] for p in data["points"] if p["throughput"]]
    return (left, 10 ** math.ceil(math.log10(right))), (min(low) * 0.7, max(y) * 2.2)


def _figure(data: dict[str, Any]) -> Any:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    from roofline.support import figures

    figure, axes = figures.new(height=460)
    figure.set_facecolor("white")
    (left, right), limits = bounds_of(data)
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=limits)
    axes.set(xlabel="arithmetic intensity (FLOP/B)", ylabel="throughput (FLOP/s)")
    axes.yaxis.set_major_locator(LogLocator(10))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: quantity(v, "FLOP/s")))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    labels = []
    for place, roof in enumerate(data["roofs"]):
        color = figures.COLORS[place % len(figures.COLORS)]
        x = (left, roof["ridge"], right)
        y = (left * roof["bandwidth"], roof["peak"], roof["peak"])
        axes.plot(x, y, color=color, ls=(0, (5, 3)))
        axes.plot(roof["ridge"], roof["peak"], "|", color=color, ms=12)
        text = f"{roof['name']}, {roof['dtype']}\n{quantity(roof['peak'], 'FLOP/s')}"
        labels.append(figures.Label(roof["peak"], text))
    green = figures.PALETTE["green"]
    for point in data["points"]:
        at = point["intensity"]
        for rate in point["attainable"].values():
            axes.plot(at, rate, "o", mfc="none", mec=green, ms=8)
        top = point["throughput"] or max(point["attainable"].values())
        if point["throughput"]:
            axes.plot(at, top, "o", color=green, ms=6)
        far = at > right / 100
        axes.annotate(
            point["name"],
            (at, top),
            xytext=(-7 if far else 7, -10),
            textcoords="offset points",
            ha="right" if far else "left",
            fontsize=8,
        )
    figures.label_ends(figure, axes, labels)
    return figure


def _page(data: dict[str, Any]) -> str:
    """One file that needs nothing else: the data, and a script that draws it."""
    template = files("roofline").joinpath("data/plot.html").read_text(encoding="utf-8")
    (left, right), (low, high) = bounds_of(data)
    drawn = {**data, "x": [left, right], "y": [low, high]}
    text = json.dumps(drawn).replace("<", "\\u003c")
    title = ", ".join(roof["name"] for roof in data["roofs"])
    return template.replace("{{title}}", html.escape(title)).replace("{{data}}", text)
