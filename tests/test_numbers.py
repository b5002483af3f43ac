"""Inline numbers: how they are looked up and printed, and where they come from."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sample_record import record

from roofline.support import numbers, storage
from roofline.support.format import UNITS, percent, quantity, render
from roofline.support.sources import Source


@pytest.fixture(autouse=True)
def small_record(tmp_path, monkeypatch):
    monkeypatch.setattr(numbers.pending, "reasons", dict)  # nothing is waited for
    path = tmp_path / "test.json"
    storage.save(record(), path)
    monkeypatch.setenv("ROOFLINE_RECORD", str(path))
    return path


class TestQuantity:
    @pytest.mark.parametrize(
        ("value", "unit", "text"),
        [
            (4.8e12, "B/s", "4.80 TB/s"),
            (989e12, "FLOP/s", "989 TFLOP/s"),
            (20.34e-6, "s", "20.3 µs"),
            (206.04, "FLOP/B", "206 FLOP/B"),
            (0.125, "FLOP/B", "0.125 FLOP/B"),
            (0.012345, "FLOP/B", "0.0123 FLOP/B"),
            (1365.33, "FLOP/B", "1,370 FLOP/B"),
            (999.4e9, "B", "999 GB"),
            (999.9e9, "B", "1.00 TB"),
            (9.996e9, "B", "10.0 GB"),
            (0.9996, "s", "1.00 s"),
            (999.6e-6, "s", "1.00 ms"),
            (12345.0, "s", "12,300 s"),
            (0.5, "B", "0.500 B"),
            (0, "s", "0 s"),
            (0.0, "B/s", "0 B/s"),
            (-5e-6, "s", "−5.00 µs"),
            (math.nan, "s", "nan s"),
            (math.inf, "B/s", "∞ B/s"),
            (-math.inf, "B/s", "−∞ B/s"),
            (1e-30, "s", "1.00e-15 fs"),
            (5e30, "B", "5.00e+09 ZB"),
        ],
    )
    def test_three_digits_and_a_prefix(self, value, unit, text):
        assert quantity(value, unit) == text

    @pytest.mark.parametrize(
        ("value", "unit", "text"),
        [
            (80 * 10**9, "B", "80 GB"),
            (141 * 10**9, "B", "141 GB"),
            (512, "B", "512 B"),
            (1024, "B", "1.02 kB"),
            (2 * 4096**3, "FLOP", "137 GFLOP"),
            (62914560, "iB", "60 MiB"),
            (228 * 1024, "iB", "228 KiB"),
            (1000 * 1024, "iB", "1000 KiB"),
            (1536, "iB", "1.50 KiB"),
            (1023.7 * 1024, "iB", "1.00 MiB"),
            (150109880320, "iB", "140 GiB"),
            (0, "iB", "0 B"),
            (1, "iB", "1 B"),
        ],
    )
    def test_whole_numbers_print_whole(self, value, unit, text):
        assert quantity(value, unit) == text

    def test_an_unknown_unit_is_an_error(self):
        with pytest.raises(
            ValueError, match="unit must be one of B, .*; got 'furlong'"
        ):
            quantity(1.0, "furlong")

    @given(
        st.floats(1e-14, 1e22) | st.floats(-1e22, -1e-14),
        st.sampled_from([unit for unit in UNITS if len(UNITS[unit]) > 1]),
    )
    def test_reads_back_to_three_digits(self, value, unit):
        prefixes = UNITS[unit]
        assume(10.0 ** min(prefixes) <= abs(value) < 9.9e2 * 10.0 ** max(prefixes))
        number, _, prefixed = quantity(value, unit).partition(" ")
        prefix = prefixed.removesuffix(unit)
        power = next(power for power, each in prefixes.items() if each == prefix)
        mantissa = float(number.replace("−", "-").replace(",", ""))
        assert mantissa * 10.0**power == pytest.approx(value, rel=0.00501)
        if abs(value) >= 1 or power < 0:
            assert len(re.sub(r"\D", "", number)) == 3 or power == max(prefixes)
            assert 1 <= abs(mantissa) < 1000 or power == max(prefixes)

    @given(st.integers(1, 2**62))
    def test_binary_reads_back_too(self, value):
        number, _, unit = quantity(value, "iB").partition(" ")
        prefixes = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
        back = float(number.replace(",", "")) * 1024 ** prefixes.index(unit)
        assert back == pytest.approx(value, rel=0.00501)

    @given(st.floats(allow_nan=True, allow_infinity=True), st.sampled_from(list(UNITS)))
    def test_every_float_prints(self, value, unit):
        assert quantity(value, unit).endswith(unit)


class TestRender:
    @pytest.mark.parametrize(
        ("value", "spec", "text"),
        [
            (4.8e12, "B/s", "4.80 TB/s"),
            (4.8e12, "B/s of it", "4.80 TB/s of it"),
            (2e-3, "s", "2.00 ms"),
            (0.93123, "%", "93.1%"),
            (0.93, "%", "93%"),
            (1.0, "%", "100%"),
            (12.345, "%", "1,230%"),
            (0.0004567, "%", "0.0457%"),
            (0, "%", "0%"),
            (-0.5, "%", "−50%"),
            (1.534, ".2f ×", "1.53 ×"),
            (8192, ",d columns", "8,192 columns"),
            (8192.0, "d", "8192"),
            (3.14159, ".3g", "3.14"),
            (-2.5, ".1f", "−2.5"),
            (0.5, ".1%", "50.0%"),
            ("missed", "word", "missed"),
            ("met", "word, at last", None),
            ("wgmma", "s", None),
        ],
    )
    def test_formats(self, value, spec, text):
        if text is None:
            with pytest.raises(ValueError, match="is no number|got 'word,'"):
                render(value, spec)
        else:
            assert render(value, spec) == text

    @pytest.mark.parametrize(
        ("value", "spec", "message"),
        [
            (1.0, "", "got nothing"),
            (1.0, "TB/s", "format must be a unit .*got 'TB/s'"),
            (1.0, "furlongs", "got 'furlongs'"),
            (1.5, "d", "1.5 cannot be formatted as 'd'"),
            (None, ".3g", "None cannot be formatted"),
            (True, "B/s", "True is no number"),
            ([], "%", "is no number"),
            (1.0, "word", "1.0 is no word"),
        ],
    )
    def test_mistakes_are_errors(self, value, spec, message):
        with pytest.raises(ValueError, match=message):
            render(value, spec)

    @given(st.floats(0, 10))
    def test_percent_has_three_digits_at_most(self, value):
        text = percent(value)
        assert text.endswith("%")
        if value > 1e-6:
            assert len(re.sub(r"\D", "", text).strip("0")) <= 3
            read = float(text[:-1].replace(",", "")) / 100
            assert read == pytest.approx(value, rel=0.00501)


class TestLookUp:
    def test_measured(self):
        result = numbers.measured("softmax", rows=16384, cols=8192)
        assert result.value == pytest.approx(4e12)
        assert not result.absent

    def test_a_missing_result_says_how_to_measure_it(self):
        with pytest.raises(LookupError, match="no rope .*measure --only rope$"):
            numbers.measured("rope", cols=1)

    def test_a_missing_record_says_so_too(self, small_record):
        small_record.unlink()
        with pytest.raises(
            LookupError, match="no record test.json yet; measure it with"
        ):
            numbers.measured("softmax")
        with pytest.raises(LookupError, match="no record"):
            numbers.record()

    def test_an_ambiguous_case_asks_for_no_measurement(self):
        with pytest.raises(LookupError, match="name one") as caught:
            numbers.measured("softmax", cols=32768)
        assert "--only" not in str(caught.value)

    def test_a_new_record_is_seen(self, small_record):
        assert numbers.record().device == "Test GPU 9000"
        storage.save(record(measurements=()), small_record)
        with pytest.raises(LookupError):
            numbers.measured("softmax")

    def test_ceiling_counted_geomean_results(self):
        assert numbers.ceiling("copy").value == pytest.approx(4e12)
        assert numbers.counted("softmax")["dram_bytes"] == 1e9
        assert numbers.geomean("softmax", "torch") == pytest.approx(3.0)
        assert [r.dtype for r in numbers.results("softmax")] == ["bf16", "bf16", "fp32"]
        for look_up in (
            numbers.ceiling,
            numbers.counted,
            numbers.geomean,
            numbers.results,
        ):
            with pytest.raises(LookupError, match="--only rope"):
                look_up("rope")

    def test_what_became_of_a_target(self):
        size = {"rows": 16384, "cols": 8192}
        assert numbers.verdict("softmax", "limit", **size) == "met"
        assert numbers.verdict("softmax", "peer:torch", **size) == "missed"
        assert numbers.verdict("softmax", "peer:torch", "naive", **size) == "met"
        assert numbers.verdict("softmax", "geomean:peer:torch") == "met"
        with pytest.raises(LookupError, match="0 targets, where one is asked for"):
            numbers.verdict("softmax", "peer:torch", "torch", **size)
        with pytest.raises(LookupError, match="0 targets"):
            numbers.verdict("softmax", "limit", cols=32768, dtype="bf16")

    def test_targets_can_be_counted(self):
        met = [judgement.met for judgement in numbers.judged("softmax")]
        assert len(met) == 7 and sum(met) == 5
        assert len(numbers.judged("softmax", "peer:torch")) == 2
        assert len(numbers.judged("softmax", cols=8192)) == 6

    def test_the_record_tells_of_itself(self):
        facts = numbers.record()
        assert facts.date == "2026-11-30"
        assert facts.driver == "580.1"
        assert facts.versions["torch"] == "2.11.0"
        assert len(facts.results) == 4

    def test_the_model_and_math_are_there(self):
        assert numbers.ridge(numbers.gpu("H200"), "bf16") == pytest.approx(
            206, rel=0.01
        )
        assert numbers.sqrt(numbers.pi**2) == pytest.approx(math.pi)

    def test_an_unknown_gpu_is_a_lookup_error(self):
        with pytest.raises(LookupError, match="H200"):
            numbers.gpu("H20O")


class TestPending:
    """A benchmark that is still to be measured: no number, and a source that says so."""

    @pytest.fixture(autouse=True)
    def waiting(self, monkeypatch):
        monkeypatch.setattr(numbers.pending, "reasons", lambda: {"rope": "No card was free."})

    def test_it_gives_no_number_and_names_the_reason(self):
        with numbers.collect_sources() as sources:
            assert math.isnan(numbers.measured("rope", cols=1).value)
            assert math.isnan(numbers.counted("rope", cols=1)["dram_bytes"])
            assert math.isnan(numbers.geomean("rope"))
            assert numbers.results("rope") == []
            assert numbers.verdict("rope", "limit") == "open"
            assert numbers.verdict("rope", "limit", cols=1) == "open"
        assert {source.kind for source in sources} == {"pending"}
        assert "No card was free." in sources[0].text

    def test_other_benchmarks_are_unaffected(self):
        with pytest.raises(LookupError, match="no other"):
            numbers.measured("other")

    def test_the_book_prints_words_in_its_place(self):
        from dataclasses import replace

        from literate.config import load
        from literate.expressions import evaluate

        config = load(Path(__file__).parent)
        found = evaluate('2 * measured("rope", cols=1).value -> B/s', config)
        assert (found.kind, found.text) == ("pending", "not yet measured")
        with pytest.raises(ValueError, match="no number to print"):
            evaluate("0 * float('inf') -> .1f", replace(config, namespace=""))


class TestPendingResults:
    """What stands in for a result that the record lacks and pending.toml names."""

    @pytest.fixture(autouse=True)
    def waiting(self, monkeypatch):
        known = ("rope", "read", "softmax")
        monkeypatch.setattr(numbers.pending, "reasons", lambda: dict.fromkeys(known, "Later."))

    def test_what_was_measured_stays(self):
        assert numbers.measured("softmax", cols=8192).value == pytest.approx(4e12)

    @pytest.mark.parametrize("gone", [False, True])
    def test_what_was_not_is_nan_and_flagged(self, gone, small_record):
        if gone:
            small_record.unlink()
        result = numbers.measured("rope", cols=1)
        assert result.absent
        assert not result.met
        assert all(
            math.isnan(value)
            for value in (
                result.seconds, result.value, result.fraction, result.spread,
                result.ratio("torch"), result.peers["torch"], result.steps["naive"],
                result.entry("torch").value, numbers.ceiling("read").value,
                numbers.counted("rope")["dram_bytes"],
                numbers.counted("rope").value("x", "torch"),
                numbers.counted("rope").ratio("x", "torch"),
                numbers.geomean("rope"),
            )
        )  # fmt: skip
        assert numbers.results("rope") == []

    def test_a_mistake_is_still_an_error(self):
        with pytest.raises(LookupError, match="name one"):
            numbers.measured("softmax", cols=32768)


class TestSources:
    def test_a_measured_number(self):
        with numbers.collect_sources() as sources:
            assert numbers.measured("softmax", cols=8192).fraction
        assert [source.kind for source in sources] == ["measured"]
        assert "Test GPU 9000" in sources[0].text

    def test_a_number_of_a_datasheet(self):
        with numbers.collect_sources() as sources:
            assert numbers.ridge(numbers.gpu("H200"), "bf16")
        assert [source.kind for source in sources] == ["datasheet"]
        assert "H200" in sources[0].text

    def test_a_counted_number_and_a_repeated_one(self):
        with numbers.collect_sources() as sources:
            assert numbers.counted("softmax") and numbers.counted("softmax")
        assert [source.kind for source in sources] == ["counted"]

    def test_what_the_compiler_made_has_the_compiler(self, monkeypatch):
        xray = pytest.importorskip("roofline.xray")
        monkeypatch.setattr(xray, "committed", lambda name, target: (name, target))
        monkeypatch.setattr(xray, "compiler", lambda: "3.7.1")
        with numbers.collect_sources() as sources:
            assert numbers.xray_report("softmax", "sm_90") == ("softmax", "sm_90")
        assert sources == [
            Source("compiled", "Compiled for sm_90 by Triton 3.7.1, without a GPU.")
        ]

    def test_a_computed_number_has_none(self):
        with numbers.collect_sources() as sources:
            assert numbers.attainable(1.0, peak=2.0, bandwidth=1.0) == 1.0
        assert sources == []

    def test_collections_nest_and_end(self):
        with numbers.collect_sources() as outer:
            with numbers.collect_sources() as inner:
                numbers.gpu("H200")
            assert len(inner) == 1
        numbers.gpu("H200")
        assert outer == []
        assert len(inner) == 1


def test_imports_neither_torch_nor_numpy_nor_matplotlib():
    code = (
        "import sys, roofline.support.numbers, roofline.support.bench, roofline;"
        "print([m for m in ('torch', 'triton', 'numpy', 'matplotlib', 'jax', 'rich')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
