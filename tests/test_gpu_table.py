"""The GPU table: every figure has a source and a kind, and no row mixes kinds."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from importlib.resources import files

import pytest

from roofline.hardware import DTYPES, GPU, gpu, gpus
from roofline.model import ridge
from roofline.support.provenance import GRADES, exceptions, figures_of

ROWS = {row.name: row for row in gpus()}
# FLOPs of one SM in one clock cycle, dense, 16-bit inputs and fp32 sums.
PER_SM = {
    "Volta": 1024, "Turing": 1024, "Ampere": 2048, "Ada": 1024, "Hopper": 4096,
    "Blackwell": 8192, "Blackwell Ultra": 8192, "Rubin": 8192, "CDNA 3": 2048,
    "CDNA 4": 4096,
}  # fmt: skip
# Chips of the graphics line, which sum in fp32 at half the rate.
HALF = {"A10G": 512, "RTX 4090": 512}
PUBLISHED = {  # what other chapters' predictions stand on: bf16 or fp16, TFLOP/s; TB/s
    "T4": (65, 0.32), "V100-SXM2-16GB": (125, 0.9), "V100-SXM2-32GB": (125, 0.9),
    "L4": (121, 0.3), "A10G": (70, 0.6), "L40S": (362, 0.864), "RTX 4090": (165.2, 1.008),
    "A100-SXM4-40GB": (312, 1.555), "A100-SXM4-80GB": (312, 2.039),
    "A100-PCIE-40GB": (312, 1.555), "A100-PCIE-80GB": (312, 1.935),
    "H100 SXM": (989, 3.35), "H100 PCIe": (756, 2.0), "H200": (989, 4.8),
    "GH200-96GB": (989, 4.0), "GH200-144GB": (989, 4.9), "B200": (2250, 7.7),
    "GB200": (2500, 8.0), "B300": (2250, 7.7), "Rubin": (4000, 22.0),
    "MI300X": (1307, 5.3), "MI355X": (2517, 8.0), "TPU v5e": (197, 0.82),
    "TPU v5p": (459, 2.77), "TPU v6e": (918, 1.64), "TPU v7": (2307, 7.37),
}  # fmt: skip


def sixteen(row: GPU) -> str:
    return "bf16" if "bf16" in row.peaks else "fp16"


def test_every_card_of_the_book_is_there_with_its_two_numbers():
    assert set(ROWS) == set(PUBLISHED)
    for name, (peak, bandwidth) in PUBLISHED.items():
        row = ROWS[name]
        assert row.peak(sixteen(row)) == pytest.approx(peak * 1e12), name
        assert row.bandwidth == pytest.approx(bandwidth * 1e12), name


@pytest.mark.parametrize("name", ROWS)
def test_each_figure_has_a_source_a_grade_and_a_kind(name):
    found = figures_of(ROWS[name])
    assert {"memory_bytes", "memory_kind", "bandwidth"} <= set(found)
    for figure, fact in found.items():
        assert fact.grade in GRADES and fact.source, figure
        peak = figure.partition("peaks.")[1]
        expected = "sparse" if figure.startswith("sparse_") else "dense"
        assert fact.kind == (expected if peak else None), figure


def test_exceptions_are_about_figures_that_are_there():
    for name, figure in exceptions():
        assert figure in figures_of(ROWS[name]), (name, figure)


def test_an_exception_is_worse_or_more_direct_than_its_row():
    assert figures_of(gpu("H200"))["l2_bytes"].grade == "driver"
    assert figures_of(gpu("H200"))["bandwidth"].grade == "datasheet"
    assert figures_of(gpu("B200"))["peaks.fp32"].grade == "unverified"
    assert figures_of(gpu("B300"))["peaks.fp4"].grade == "secondary"


@pytest.mark.parametrize("name", ROWS)
def test_no_row_mixes_dense_and_sparse(name):
    row = ROWS[name]
    for dtype, rate in row.sparse_peaks.items():
        assert 1.97 < rate / row.peaks[dtype] < 2.03, dtype
    # Half the bits, twice the rate: a sparse number in the dense column is off by two.
    steps = (("tf32", sixteen(row), 2), (sixteen(row), "fp8", 2), ("fp8", "fp4", 2))
    for slow, fast, times in steps:
        if slow in row.peaks and fast in row.peaks and name != "Rubin":
            ratio = row.peaks[fast] / row.peaks[slow]
            assert times * 0.97 < ratio < times * 1.05, (slow, fast)
    # Rubin's is the exception: 4.4 and 2 times, as announced.
    per_sm = HALF.get(name, PER_SM.get(row.architecture))
    if row.sms and per_sm:
        clock = row.peak(sixteen(row)) / (row.sms * per_sm)
        assert 1.2e9 < clock < 2.6e9, clock


def test_a_sparse_number_in_the_dense_column_would_be_seen():
    for name, row in ROWS.items():
        per_sm = HALF.get(name, PER_SM.get(row.architecture))
        if row.sms and per_sm:
            assert 2 * row.peak(sixteen(row)) / (row.sms * per_sm) > 2.6e9, name


def test_no_sparsity_where_the_chip_has_none():
    for name in ("T4", "V100-SXM2-16GB", "V100-SXM2-32GB"):
        assert not ROWS[name].sparse_peaks
        assert not {"bf16", "tf32", "fp8"} & set(ROWS[name].peaks)


def test_the_ridge_is_computed_and_never_stored():
    assert not any("ridge" in field.name for field in fields(GPU))
    text = files("roofline").joinpath("data/gpus.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)["gpu"]
    keys = {key for row in rows for table in (row, row["peaks"]) for key in table}
    assert keys and not any("ridge" in key for key in keys)
    for row in gpus():
        for dtype in row.peaks:
            assert ridge(row, dtype) == row.peaks[dtype] / row.bandwidth


def test_dtypes_are_known():
    for row in gpus():
        assert set(row.peaks) | set(row.sparse_peaks) <= set(DTYPES)
