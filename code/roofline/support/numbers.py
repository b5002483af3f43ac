"""Every name that an inline number of the book may use.

`gpu("H200")` is a row of the GPU table; `measured("softmax", rows=16384, cols=8192)`
a result of the committed record; the rest is the roofline model and `math`. The names
that look something up say so to `collect_sources`, so that a page can tell a measured
number, a number of a datasheet and a computed one apart.
"""

from __future__ import annotations

import math
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from roofline import hardware, model, network, serving, tile_order
from roofline.support import pending, storage
from roofline.support import results as _results
from roofline.support.format import percent, quantity, render
from roofline.support.profiles import hunt, profiled
from roofline.support.record import Record
from roofline.support.sources import Source, collect_sources, note

__all__ = [
    "ceiling",
    "collect_sources",
    "counted",
    "fitted",
    "geomean",
    "gpu",
    "hunt",
    "judged",
    "measured",
    "percent",
    "profiled",
    "quantity",
    "record",
    "render",
    "results",
    "tensor_parallel",
    "verdict",
    "xray_report",
]

# Functions of `math`, of the roofline, of serving and of the order of tiles are names of
# their own: sqrt, log2, ridge, decode_point, dram_reads, …
for _module in (math, model, network, serving, tile_order):
    for _name, _thing in vars(_module).items():
        if _name[0] != "_" and (
            _module is math or getattr(_thing, "__module__", None) == _module.__name__
        ):
            globals()[_name] = _thing
            __all__.append(_name)

#: The device whose record the book reads, unless ROOFLINE_RECORD names a file.
DEVICE = "NVIDIA H200"


def gpu(name: str) -> hardware.GPU:
    """The row of the GPU table with exactly this name."""
    row = hardware.gpu(name)
    grade = "" if row.grade == "datasheet" else f" ({row.grade})"
    note(Source("datasheet", f"{row.name}: {row.source}{grade}."))
    return row


def measured(id: str, **case: Any) -> _results.Result:
    """The result of benchmark `id` for the case with these sizes (and dtype=).

    Sizes may be left out as long as one result fits. With `devices=2` it is a result
    of the record of two devices together. A result that was never measured
    is a LookupError with the command that measures it; for a benchmark that
    data/pending.toml names, it is a result of NaNs with `.absent` true instead.
    """
    return _look_up(_results.find_result, _results.AbsentResult, id, case)


def ceiling(id: str, **case: Any) -> _results.Result:
    """The best of the results of benchmark `id`: what the device was seen to reach."""
    return _look_up(_results.best_result, _results.AbsentResult, id, case)


def counted(id: str, **case: Any) -> _results.Counted:
    """The hardware counters of benchmark `id` for the case with these sizes."""
    return _look_up(_results.find_count, _results.AbsentCount, id, case)


def results(id: str, devices: int = 1) -> list[_results.Result]:
    """All results of benchmark `id`, in the order of its cases."""
    waiting = _note_if_pending(id)
    try:
        found = _results.all_results(load_record(devices), id)
        if not found:
            raise _results.NotMeasured(f"the record holds no {id}")
    except LookupError as error:
        if waiting:
            return []
        raise _with_command(error, id) from None
    for result in found:
        note(result.source)
    return found


def fitted(id: str, entry: str | None = None, *, devices: int) -> network.Link:
    """The link that explains best what a collective took at all sizes measured."""
    samples = []
    for result in results(id, devices):
        what = network.Collective(id, result.case["size"], devices)
        seconds = result.entry(entry).seconds
        samples.append((what.sent / what.messages, seconds / what.messages))
    if not samples:  # still to be measured
        return network.Link(id, math.nan, math.nan)
    alpha, bandwidth = network.fit(samples)
    return network.Link(id, bandwidth, alpha)


def tensor_parallel(n: int, *, devices: int = 2) -> dict[str, float]:
    """Seconds that chapter 8 predicts for its product of n columns, by either way."""
    with collect_sources() as used:  # it stays a prediction, whatever it was made from
        result = measured("tensor-parallel", devices=devices, n=n)
        gathering = fitted("all-gather", devices=devices)
        passing = fitted("ppermute", devices=devices)
    text = f"Predicted from the product alone and the links as fitted. {used[0].text}"
    note(Source("predicted", text))
    local = result.entry("local").seconds
    piece = result.bytes // (devices - 1)
    gather = gathering.seconds(
        network.Collective("all-gather", piece * devices, devices)
    )
    turn = passing.seconds(network.Collective("ppermute", piece, devices))
    ring = local / devices + (devices - 1) * max(turn, local / devices)
    return {"gathered": gather + local, "ring": ring}


def geomean(id: str, peer: str | None = None, entry: str | None = None) -> float:
    """Geometric mean over all cases of how much faster we are than `peer`."""
    if _note_if_pending(id):  # a mean over some of the cases would mislead
        return math.nan
    try:
        results(id)
        return _results.geometric_mean(load_record(), id, peer, entry)
    except LookupError as error:
        raise _with_command(error, id) from None


def judged(id: str, kind: str | None = None, **case: Any) -> list[_results.Judgement]:
    """The targets of benchmark `id`, with what was reached: all, or of these cases.

    `kind` picks those of one kind ("limit", "peer:cublas"); targets on all cases
    together come last, and only if no case is named.
    """
    found = [
        judgement
        for result in results(id)
        if case.items() <= {**result.case, "dtype": result.dtype}.items()
        for judgement in result.targets
    ]
    if not case:
        found += _results.judge_overall(load_record(), id)
    return [j for j in found if kind is None or j.kind == kind]


def verdict(id: str, kind: str, entry: str | None = None, **case: Any) -> str:
    """'met' or 'missed': what became of the one target of this kind, for this entry."""
    if case:
        result = measured(id, **case)
        if result.absent:
            return "open"
        found = result.targets
    elif _note_if_pending(id):
        return "open"
    else:
        found = judged(id)
    found = [j for j in found if j.kind == kind and j.target.entry == entry]
    if len(found) != 1:
        about = f"{id} {kind} {case}"
        raise LookupError(f"{about} has {len(found)} targets, where one is asked for")
    return "met" if found[0].met else "missed"


def xray_report(name: str, target: str) -> Any:
    """What the compiler made of a kernel for a target: a roofline.xray.Report."""
    from roofline import xray

    report = xray.committed(name, target)
    made = f"Compiled for {target} by Triton {xray.compiler()}, without a GPU."
    note(Source("compiled", made))
    return report


def record() -> RecordFacts:
    """What the committed record says of itself."""
    return RecordFacts(load_record())


class RecordFacts:
    """The record's device, and the date and versions of its newest run."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.device = record.device.name
        newest = max(record.runs.values(), key=lambda run: run.date, default=None)
        self.date = newest.date if newest else "not measured"
        self.versions = dict(newest.versions) if newest else {}
        self.driver = newest.driver if newest else None
        self.command = newest.command if newest else ""

    @property
    def results(self) -> list[_results.Result]:
        return _results.all_results(self.record)


def record_path(devices: int = 1) -> Path:
    """The file that measured numbers of one device, or of several together, come from."""
    if devices > 1:
        return storage.path_for(DEVICE, devices)
    return Path(os.environ.get("ROOFLINE_RECORD") or storage.path_for(DEVICE))


def load_record(devices: int = 1) -> Record:
    """The book's record; without a file, a LookupError."""
    path = record_path(devices)
    try:
        stamp = path.stat().st_mtime_ns
    except OSError:
        raise _results.NotMeasured(f"there is no record {path.name} yet") from None
    return _load(path, stamp)


@lru_cache(maxsize=4)
def _load(path: Path, stamp: int) -> Record:
    return storage.load(path)


def _look_up(find: Any, absent: Any, id: str, case: dict[str, Any]) -> Any:
    try:
        found = find(load_record(case.get("devices", 1)), id, case)
    except _results.NotMeasured as error:
        if _note_if_pending(id):
            return absent(id, case)
        raise _with_command(error, id) from None
    note(found.source)
    return found


def _note_if_pending(id: str) -> bool:
    """Whether results of `id` are still to be measured; if so, the number says it."""
    reason = pending.reasons().get(id)
    if reason:
        note(Source("pending", f"Not yet measured. {reason}"))
    return reason is not None


def _with_command(error: LookupError, id: str) -> LookupError:
    if not isinstance(error, _results.NotMeasured):
        return error
    return _results.NotMeasured(
        f"{error}; measure it with: python -m roofline measure --only {id}"
    )
