"""The record: written and read back, checked, merged, and what follows from it."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import pytest
from sample_record import copy, count, measurement, record, run, timing

from roofline.support import pending, storage
from roofline.support.record import Device, RecordError, merge
from roofline.support.results import (
    NotMeasured,
    Result,
    all_results,
    best_result,
    find_count,
    find_result,
    geometric_mean,
    judge_overall,
)
from roofline.support.targets import Target


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "test.json"
    storage.save(record(), path)
    return path


class TestFile:
    def test_reads_back_what_was_written(self, file):
        assert storage.load(file) == record()

    def test_writes_the_same_bytes_again(self, file):
        before = file.read_bytes()
        storage.save(storage.load(file), file)
        assert file.read_bytes() == before

    def test_puts_each_timing_on_a_line_of_its_own(self, file):
        lines = [line for line in file.read_text().splitlines() if '"median"' in line]
        assert all(line.count('"median"') == 1 for line in lines)
        assert all('"n": 50}' in line for line in lines)

    def test_a_failed_write_leaves_the_old_file_and_nothing_else(self, file):
        before = file.read_bytes()
        broken = record(counts=(count(entries={"roofline": {"x": math.nan}}),))
        with pytest.raises(ValueError):
            storage.save(broken, file)
        assert file.read_bytes() == before
        assert [path.name for path in file.parent.iterdir()] == ["test.json"]

    def test_holds_no_derived_number(self, file):
        text = file.read_text()
        for word in ("value", "fraction", "ratio", "met", "spread"):
            assert f'"{word}"' not in text

    @pytest.mark.parametrize(
        ("name", "slug"),
        [
            ("NVIDIA H200", "nvidia-h200"),
            ("NVIDIA A100-SXM4-80GB", "nvidia-a100-sxm4-80gb"),
        ],
    )
    def test_is_named_after_the_device(self, name, slug):
        assert storage.path_for(Device(name)).name == f"{slug}.json"
        assert storage.path_for(name) == storage.path_for(slug)


def _set(data, *way_and_value):
    *way, last, value = way_and_value
    for step in way:
        data = data[step]
    data[last] = value


class TestBadFile:
    """Every error names the file, the field, and what was due."""

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (("schema", 99), "top level: expected schema 1, found 99"),
            (("device", {}), "device: the field 'name' is missing"),
            (("device", "name", 3), "device.name: expected a text, got 3"),
            (("extra", 1), "extra: unknown field"),
            (("measurements", {}), "measurements: expected a list, got {}"),
            (
                ("measurements", 1, "timings", "torch", "median", "fast"),
                "measurements[1].timings.torch.median: "
                "expected a whole number or a number, got 'fast'",
            ),
            (
                ("measurements", 1, "timings", "torch", "median", -1.0),
                "measurements[1].timings.torch.median: "
                "expected a number of at least 0, got -1.0",
            ),
            (
                ("measurements", 1, "timings", "torch", "p20", 1.0),
                "measurements[1].timings.torch: expected 0 < p20 <= median <= p80",
            ),
            (
                ("measurements", 1, "timings", "torch", "n", 0),
                "measurements[1].timings.torch.n: expected at least 1 sample, got 0",
            ),
            (
                ("measurements", 1, "bytes", True),
                "measurements[1].bytes: expected a whole number, got True",
            ),
            (
                ("measurements", 1, "quantity", "rows"),
                "measurements[1].quantity: expected 'bytes' or 'flops', got 'rows'",
            ),
            (
                ("measurements", 1, "run", "never"),
                "measurements[1]: its run 'never' is not among the runs",
            ),
            (
                ("measurements", 1, "limit", "read"),
                "measurements[1]: its limit 'read' is no ceiling of run 'run-1'",
            ),
            (
                ("measurements", 1, "ours", "nobody"),
                "measurements[1].ours: 'nobody' is not among the timings",
            ),
            (
                ("measurements", 1, "targets", 0, "kind", "fastest"),
                "measurements[1].targets[0]: kind must be 'limit'",
            ),
            (("runs", "run-1", "only", "softmax"), "runs.run-1.only: expected a list"),
            (
                ("counts", 0, "entries", "torch", "dram_bytes", None),
                "counts[0].entries.torch.dram_bytes: expected",
            ),
        ],
    )
    def test_says_where_and_what(self, file, change, message):
        data = json.loads(file.read_text())
        _set(data, *change)
        file.write_text(json.dumps(data))
        with pytest.raises(RecordError) as caught:
            storage.load(file)
        assert str(caught.value).startswith(f"{file}: {message}")

    def test_says_that_it_is_no_json(self, file):
        file.write_text("{")
        with pytest.raises(RecordError, match="not JSON"):
            storage.load(file)

    def test_says_that_a_number_is_not_finite(self, file):
        file.write_text(file.read_text().replace("0.00025,", "NaN,"))
        with pytest.raises(RecordError, match=r"median: expected a finite number"):
            storage.load(file)

    def test_says_that_it_is_not_there(self, tmp_path):
        with pytest.raises(RecordError, match="No such file"):
            storage.load(tmp_path / "none.json")


class TestMerge:
    def new(self, only=(), **changes):
        fields = {
            "runs": {"run-2": run("run-2", only=only, date="2026-12-01")},
            "measurements": (measurement(run="run-2"),),
            "counts": (),
            "overall": {},
        }
        return record(**fields | changes)

    def test_into_nothing_is_the_new_record(self):
        assert merge(None, record()) == record()

    def test_a_part_replaces_its_benchmarks_and_keeps_the_rest_in_place(self):
        new = self.new(only=("softmax",))
        merged = merge(record(), new)
        assert [(m.id, m.run) for m in merged.measurements] == [
            ("copy", "run-1"),
            ("softmax", "run-2"),
        ]
        assert merged.runs.keys() == {"run-1", "run-2"}

    def test_each_result_keeps_the_ceiling_of_its_own_run(self):
        faster = run("run-2", only=("rope",), ceilings={"copy": copy("run-2", 250e-6)})
        new = self.new(
            runs={"run-2": faster}, measurements=(measurement("rope", "run-2"),)
        )
        merged = merge(record(), new)
        fractions = {r.id: r.fraction for r in all_results(merged) if r.limit}
        assert fractions == {"softmax": 1.0, "rope": 0.5}

    def test_everything_replaces_everything(self):
        merged = merge(record(), self.new())
        assert merged.runs.keys() == {"run-2"} | {c.run for c in merged.counts}
        assert [m.id for m in merged.measurements] == ["softmax"]

    def test_counts_stay_until_they_are_counted_again(self):
        merged = merge(record(), self.new(only=("softmax",)))
        assert merged.counts == (count(),)
        assert "run-1" in merged.runs
        again = count(run="run-2")
        merged = merge(record(), self.new(only=("softmax",), counts=(again,)))
        assert merged.counts == (again,)

    def test_counts_go_with_a_benchmark_that_is_gone(self):
        new = self.new(measurements=(measurement("rope", "run-2"),))
        assert merge(record(), new).counts == ()

    def test_a_benchmark_that_failed_loses_its_old_results(self):
        merged = merge(record(), self.new(only=("softmax",), measurements=()))
        assert [m.id for m in merged.measurements] == ["copy"]

    def test_targets_on_all_cases_follow_their_benchmark(self):
        target = (Target("geomean:best-peer", 1.1),)
        merged = merge(
            record(), self.new(only=("softmax",), overall={"softmax": target})
        )
        assert merged.overall == {"softmax": target}
        assert merge(record(), self.new(only=("softmax",))).overall == {}
        other = self.new(only=("rope",), measurements=())
        assert merge(record(), other).overall == record().overall

    def test_runs_that_nothing_refers_to_are_dropped(self):
        new = self.new(only=("softmax", "copy"), counts=(count(run="run-2"),))
        assert merge(record(), new).runs.keys() == {"run-2"}

    def test_a_merged_record_can_be_read_back(self, tmp_path):
        merged = merge(record(), self.new(only=("softmax",)))
        storage.save(merged, tmp_path / "merged.json")
        assert storage.load(tmp_path / "merged.json") == merged

    def test_another_device_is_refused(self):
        other = replace(record(), device=Device("Other GPU"))
        with pytest.raises(RecordError, match="takes no results of 'Other GPU'"):
            merge(record(), other)


class TestResult:
    @pytest.fixture
    def softmax(self):
        return find_result(record(), "softmax", {"cols": 8192})

    def test_values_follow_from_the_timings(self, softmax):
        assert softmax.seconds == 250e-6
        assert softmax.value == pytest.approx(4e12)
        assert softmax.unit == "B/s"
        assert softmax.spread == pytest.approx(0.03)
        assert softmax.intensity == pytest.approx(0.1)
        assert softmax.name == "rows=16384 cols=8192 bf16"

    def test_flops_give_flops_per_second(self):
        result = Result(record(), measurement(quantity="flops"))
        assert result.value == pytest.approx(4e11)
        assert result.unit == "FLOP/s"

    def test_the_fraction_is_of_the_best_entry_of_the_ceiling(self, softmax):
        assert softmax.limit_value == pytest.approx(4e12)
        assert softmax.fraction == pytest.approx(1.0)

    def test_without_a_ceiling_there_is_no_fraction(self):
        result = Result(record(), copy())
        assert math.isnan(result.limit_value)
        assert math.isnan(result.fraction)

    def test_peers_and_steps_are_told_apart(self, softmax):
        assert softmax.peers == pytest.approx(
            {"torch": 4e12 / 3, "torch.compile": 2e12}
        )
        assert softmax.steps == pytest.approx({"naive": 1e12})
        assert softmax.best_peer == "torch.compile"
        assert next(iter(softmax.entries)) == "roofline"

    def test_ratios_above_one_mean_that_we_are_faster(self, softmax):
        assert softmax.ratio() == pytest.approx(2.0)
        assert softmax.ratio("torch") == pytest.approx(3.0)
        assert softmax.ratio("torch", entry="naive") == pytest.approx(0.75)

    def test_a_peer_that_was_missing_says_why(self, softmax):
        with pytest.raises(
            LookupError, match="'liger' .*liger_kernel is not installed"
        ):
            softmax.ratio("liger")

    def test_without_peers_there_is_no_best_one(self):
        alone = Result(
            record(), measurement(timings={"roofline": timing(1e-3)}, steps=())
        )
        assert alone.best_peer is None
        with pytest.raises(LookupError, match="no peer"):
            alone.ratio()

    def test_targets_are_judged(self, softmax):
        judged = [(t.kind, round(t.value, 2), t.met) for t in softmax.targets[:3]]
        assert judged == [
            ("limit", 1.0, True),
            ("best-peer", 2.0, True),
            ("peer:torch", 3.0, False),
        ]
        assert not softmax.met

    def test_a_target_against_a_missing_peer_is_not_met(self, softmax):
        target = softmax.targets[3]
        assert math.isnan(target.value)
        assert not target.met

    def test_a_target_may_be_about_a_step_or_a_counter(self, softmax):
        step, counter = softmax.targets[4:]
        assert (step.value, step.met) == (pytest.approx(0.75), True)
        assert (counter.value, counter.met) == (pytest.approx(0.5), True)

    def test_the_source_says_device_versions_date_and_command(self, softmax):
        assert softmax.source.kind == "measured"
        for word in (
            "Test GPU 9000", "driver 580.1", "torch 2.11.0", "Triton 3.6.0",
            "2026-11-30", "`python -m roofline measure`", "Median of 50",
        ):  # fmt: skip
            assert word in softmax.source.text

    def test_of_a_long_command_the_source_says_the_part_that_counts(self):
        long = "python -m roofline measure --only copy --only softmax"
        part = run(only=("copy", "softmax"), command=long)
        result = Result(record(runs={"run-1": part}), measurement())
        assert "`python -m roofline measure --only softmax`" in result.source.text


class TestLookup:
    def test_sizes_may_be_left_out_while_one_result_fits(self):
        assert find_result(record(), "softmax", {"rows": 16384}).case["cols"] == 8192

    def test_more_than_one_is_an_error_that_lists_them(self):
        with pytest.raises(
            LookupError, match="fits 2 results, name one: .*bf16; .*fp32"
        ):
            find_result(record(), "softmax", {"cols": 32768})

    def test_dtype_tells_cases_apart(self):
        found = find_result(record(), "softmax", {"cols": 32768, "dtype": "fp32"})
        assert found.dtype == "fp32"

    def test_none_is_an_error_that_lists_what_there_is(self):
        with pytest.raises(NotMeasured, match="no softmax cols=7; of softmax it holds"):
            find_result(record(), "softmax", {"cols": 7})
        with pytest.raises(NotMeasured, match="holds no rope$"):
            find_result(record(), "rope", {})

    def test_the_best_of_a_ceiling_is_its_fastest_entry(self):
        best = best_result(record(), "copy", {})
        assert best.value == pytest.approx(4e12)
        with pytest.raises(NotMeasured):
            best_result(record(), "copy", {"mib": 1})

    def test_counts(self):
        found = find_count(record(), "softmax", {"rows": 16384})
        assert found["dram_bytes"] == 1e9
        assert found.value("dram_bytes", "torch") == 2e9
        assert found.ratio("dram_bytes", "torch") == 0.5
        assert found.source.kind == "counted"
        assert "Counted by ncu 2025.3.1" in found.source.text
        with pytest.raises(LookupError, match="has no counter 'l2'; it has dram_bytes"):
            found["l2"]
        with pytest.raises(LookupError, match="not counted for 'naive'"):
            found.value("dram_bytes", "naive")

    def test_geometric_mean_over_the_cases(self):
        assert geometric_mean(record(), "softmax", "torch") == pytest.approx(3.0)
        slow = measurement(timings={"roofline": timing(1e-3), "torch": timing(1e-3)})
        mixed = record(measurements=(measurement(), slow))
        assert geometric_mean(mixed, "softmax", "torch") == pytest.approx(math.sqrt(3))
        with pytest.raises(NotMeasured, match="holds no rope"):
            geometric_mean(record(), "rope", "torch")

    def test_no_geometric_mean_leaves_a_case_out(self):
        alone = measurement(timings={"roofline": timing(1e-3)}, steps=())
        some = record(measurements=(measurement(), alone))
        with pytest.raises(LookupError, match="has no entry 'torch'"):
            geometric_mean(some, "softmax", "torch")
        (judged,) = judge_overall(some, "softmax")
        assert not judged.met

    def test_targets_on_all_cases_are_judged(self):
        (judged,) = judge_overall(record(), "softmax")
        assert (judged.value, judged.met) == (pytest.approx(3.0), True)


class TestTarget:
    @pytest.mark.parametrize(
        "kind",
        [
            "limit",
            "best-peer",
            "peer:a",
            "counter:a:b",
            "geomean:best-peer",
            "geomean:peer:a",
        ],
    )
    def test_kinds(self, kind):
        assert Target(kind, 1.0).overall == kind.startswith("geomean:")

    @pytest.mark.parametrize(
        "kind",
        ["", "peer", "peer:", "counter:a", "geomean", "geomean:limit", "fastest"],
    )
    def test_other_kinds_are_refused(self, kind):
        with pytest.raises(ValueError, match="kind must be"):
            Target(kind, 1.0)

    @pytest.mark.parametrize("bounds", [{}, {"at_least": 1, "at_most": 2}])
    def test_takes_one_bound(self, bounds):
        with pytest.raises(ValueError, match="exactly one of at_least and at_most"):
            Target("limit", **bounds)

    def test_takes_a_positive_bound(self):
        for bound in (0, -1, math.nan):
            with pytest.raises(ValueError, match="positive bound"):
                Target("limit", bound)

    def test_nan_is_never_enough(self):
        assert not Target("limit", 0.5).met_by(math.nan)
        assert not Target("limit", at_most=0.5).met_by(math.nan)


class TestCommitted:
    """Every record that the package carries."""

    @pytest.fixture(params=sorted(storage.FOLDER.glob("*.json")), ids=lambda p: p.stem)
    def path(self, request):
        return request.param

    def test_can_be_read_and_lies_where_it_is_looked_for(self, path):
        found = storage.load(path)
        assert found.measurements
        devices = found.measurements[0].case.get("devices", 1)
        assert storage.path_for(found.device, devices) == path

    def test_holds_no_small_sizes(self, path):
        assert not any(run.quick for run in storage.load(path).runs.values())

    def test_holds_the_benchmarks_and_targets_of_the_chapters(self, path):
        pytest.importorskip("torch")
        from roofline import benchmarks

        found = storage.load(path)
        held = {(m.id, tuple(m.case.items()), m.dtype): m for m in found.measurements}
        if devices := found.measurements[0].case.get("devices"):
            from roofline.collectives import KINDS, SIZES

            for kind, size in itertools.product(KINDS, SIZES):
                assert (kind, (("devices", devices), ("size", size)), "fp32") in held
            return
        for benchmark in benchmarks.load():
            assert found.overall.get(benchmark.id, ()) == benchmark.targets
            for case in benchmark.cases:
                key = (benchmark.id, tuple(case.sizes.items()), case.dtype)
                if key not in held and benchmark.id in pending.reasons():
                    continue
                assert key in held, f"{benchmark.id} {case} was not measured"
                assert held[key].targets == case.targets

    def test_waits_only_for_what_is_not_there(self, path):
        """Once a benchmark is measured whole, its entry in pending.toml has to go."""
        pytest.importorskip("torch")
        from roofline import benchmarks

        known = {benchmark.id: benchmark for benchmark in benchmarks.load()}
        held = {(m.id, tuple(m.case.items()), m.dtype) for m in storage.load(path).measurements}
        for id, reason in pending.reasons().items():
            assert id in known and len(reason) > 20
            cases = {(id, tuple(c.sizes.items()), c.dtype) for c in known[id].cases}
            assert cases - held, f"{id} is measured: take it out of pending.toml"
