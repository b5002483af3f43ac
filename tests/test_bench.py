"""Benchmarks: how they are declared, found and run."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from roofline.support.bench import (
    Benchmark,
    Case,
    PeerUnavailable,
    Target,
    Work,
    matches,
)


def nothing() -> None:
    pass


def works(case, device) -> Work:
    return Work(bytes=case["n"], flops=0, run={"roofline": nothing, "torch": nothing})


def benchmark(id: str = "fake", prepare=works, **changes) -> Benchmark:
    return Benchmark(
        **{"id": id, "cases": [Case({"n": 10})], "prepare": prepare} | changes
    )


class TestDeclaration:
    def test_a_case_reads_like_a_mapping(self):
        case = Case({"rows": 4, "cols": 8}, dtype="fp16")
        assert (case["rows"], list(case), str(case)) == (
            4,
            ["rows", "cols"],
            "rows=4 cols=8 fp16",
        )
        with pytest.raises(KeyError, match="'colums'; this case has rows, cols"):
            case["colums"]

    def test_its_small_sizes_are_laid_over_the_others(self):
        case = Case(
            {"rows": 4096, "cols": 8}, targets=(Target("limit", 1),), cpu={"rows": 2}
        )
        assert case.small() == Case({"rows": 2, "cols": 8})

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: Case({"dtype": "bf16"}), "sizes must not hold 'dtype'"),
            (
                lambda: Case({"n": 1}, cpu={"m": 1}),
                r"cpu must name sizes .*\(n\), got 'm'",
            ),
            (lambda: Work(1, 1, {}), "run must hold at least one entry"),
            (
                lambda: Work(1, 1, {"a": nothing}, missing={"a": "gone"}),
                "must not share a name: 'a'",
            ),
            (lambda: benchmark(quantity="rows"), "quantity must be 'bytes' or 'flops'"),
            (lambda: benchmark(cases=[]), "cases of 'fake' must not be empty"),
            (lambda: benchmark(cases=[Case({"n": 1})] * 2), "hold n=1 bf16 twice"),
            (
                lambda: benchmark(
                    cases=[Case({"n": 1}, targets=(Target("limit", 1),))]
                ),
                "has a target 'limit' but no limit",
            ),
            (
                lambda: benchmark(
                    cases=[Case({"n": 1}, targets=(Target("geomean:best-peer", 1),))]
                ),
                "give it to the Benchmark",
            ),
            (
                lambda: benchmark(targets=(Target("best-peer", 1),)),
                "give it to the Case",
            ),
            (
                lambda: benchmark(cases=[Case({"n": 1}, count=True)]),
                "a case to count but no counters",
            ),
        ],
    )
    def test_mistakes_are_refused(self, make, message):
        with pytest.raises(ValueError, match=message):
            make()

    def test_a_limit_may_name_the_dtype(self):
        fake = benchmark(limit="matmul-{dtype}")
        assert fake.limit_of(Case({"n": 1}, dtype="fp8")) == "matmul-fp8"
        assert benchmark().limit_of(Case({"n": 1})) is None


class TestCheck:
    def test_matches_compares_norms_in_the_reference_s_precision(self):
        torch = pytest.importorskip("torch")
        reference = torch.randn(100, dtype=torch.float64)
        check = matches(reference, 1e-2)
        check("good", reference.to(torch.bfloat16))
        with pytest.raises(AssertionError, match="bad is off by 1.0e-01 of the norm"):
            check("bad", 1.1 * reference)
        with pytest.raises(AssertionError, match="off by nan"):
            check("nan", reference * float("nan"))
        with pytest.raises(
            AssertionError, match=r"gives shape \(10, 10\), expected \(100,\)"
        ):
            check("shape", reference.view(10, 10))

    def test_dtypes_by_name(self):
        torch = pytest.importorskip("torch")
        assert Case({}, dtype="bf16").torch_dtype is torch.bfloat16
        assert Case({}, dtype="tf32").torch_dtype is torch.float32
        with pytest.raises(ValueError, match="dtype must be one of .*got 'bf17'"):
            Case({}, dtype="bf17").torch_dtype


class TestDiscovery:
    @pytest.fixture
    def folder(self, tmp_path, monkeypatch):
        from roofline import benchmarks

        (tmp_path / "__init__.py").write_text("")
        monkeypatch.setattr(benchmarks, "__file__", str(tmp_path / "__init__.py"))
        monkeypatch.setattr(benchmarks, "__path__", [str(tmp_path)])
        for name in list(sys.modules):
            if name.startswith("roofline.benchmarks."):
                monkeypatch.delitem(sys.modules, name)
        yield tmp_path
        for name in list(sys.modules):
            if name.startswith("roofline.benchmarks.fake"):
                del sys.modules[name]

    def write(self, folder, name, chapter, id):
        origin = f"# Tangled from chapters/{chapter}.md\n" if chapter else ""
        folder.joinpath(f"fake_{name}.py").write_text(
            f"{origin}from roofline.support.bench import Benchmark, Case\n"
            f"BENCHMARKS = [Benchmark({id!r}, [Case({{}})], None)]\n"
        )

    def test_modules_come_in_the_order_of_their_chapters(self, folder):
        from roofline import benchmarks

        self.write(folder, "a", "03_matmul", "matmul")
        self.write(folder, "b", None, "own")
        self.write(folder, "c", "01_tour", "copy")
        assert benchmarks.modules() == ["fake_c", "fake_a", "fake_b"]
        assert [each.id for each in benchmarks.load()] == ["copy", "matmul", "own"]

    def test_two_of_one_id_are_refused(self, folder):
        from roofline import benchmarks

        self.write(folder, "a", "03_matmul", "matmul")
        self.write(folder, "b", "04_more", "matmul")
        with pytest.raises(ValueError, match="two benchmarks are called 'matmul'"):
            benchmarks.load()

    def test_the_chapters_own_can_be_loaded_and_planned(self):
        pytest.importorskip("triton")
        from roofline import benchmarks
        from roofline.support import runner

        found = benchmarks.load()
        assert "copy" in [each.id for each in found]
        assert len(runner.plan(found, [])) == len(found)


@pytest.fixture
def measure(monkeypatch):
    """Run benchmarks on the CPU; the last outcome."""
    pytest.importorskip("triton")
    from roofline.support import environment, runner
    from roofline.support.record import Device

    monkeypatch.setattr(runner, "device_here", lambda: ("cpu", Device("CPU"), None))
    assert environment.versions()["torch"]

    def run(*benchmarks, **options):
        *_, outcome = runner.measure(benchmarks, budget=1e-4, **options)
        return outcome

    return run


class TestRun:
    def test_times_every_entry(self, measure):
        outcome = measure(benchmark())
        (found,) = outcome.record.measurements
        assert (found.id, found.case, found.bytes, found.ours) == (
            "fake",
            {"n": 10},
            10,
            "roofline",
        )
        assert list(found.timings) == ["roofline", "torch"]
        for timing in found.timings.values():
            assert 0 < timing.p20 <= timing.median <= timing.p80
            assert timing.n >= 3
        assert outcome.failures == []

    def test_on_a_cpu_the_small_sizes_run_and_targets_do_not_apply(self, measure):
        big = Case({"n": 10**12}, targets=(Target("best-peer", 1),), cpu={"n": 3})
        bigger = Case({"n": 10**13}, cpu={"n": 3})
        (found,) = measure(benchmark(cases=[big, bigger])).record.measurements
        assert found.case == {"n": 3}
        assert found.targets == ()

    def test_a_run_says_when_and_with_what(self, measure):
        outcome = measure(benchmark(), command="python -m roofline measure --quick")
        (run,) = outcome.record.runs.values()
        assert run.quick
        assert run.only == ()
        assert run.command == "python -m roofline measure --quick"
        assert {"python", "torch", "roofline"} <= run.versions.keys()
        assert run.id.startswith(run.date)

    def test_a_peer_that_fails_is_missing_with_its_reason(self, measure):
        def prepare(case, device):
            def refuse():
                raise PeerUnavailable("wants a GPU")

            def crash():
                raise RuntimeError("boom\nat line 3")

            def absent():
                raise ModuleNotFoundError("No module", name="liger_kernel")

            run = {"roofline": nothing, "a": refuse, "b": crash, "c": absent}
            return Work(1, 0, run, missing={"d": "not tried"})

        (found,) = measure(benchmark(prepare=prepare)).record.measurements
        assert list(found.timings) == ["roofline"]
        assert found.missing == {
            "d": "not tried",
            "a": "wants a GPU",
            "b": "RuntimeError: boom at line 3",
            "c": "liger_kernel is not installed",
        }

    def test_running_out_of_memory_is_a_reason(self, measure):
        torch = pytest.importorskip("torch")

        def prepare(case, device):
            def greedy():
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate …")

            return Work(1, 0, {"roofline": nothing, "torch": greedy})

        (found,) = measure(benchmark(prepare=prepare)).record.measurements
        assert found.missing == {"torch": "out of memory"}

    def test_a_peer_that_fails_only_later_is_missing_too(self, measure):
        calls = []

        def prepare(case, device):
            def tired():
                calls.append(1)
                if len(calls) > 2:
                    raise RuntimeError("enough")

            return Work(1, 0, {"roofline": nothing, "torch": tired})

        (found,) = measure(benchmark(prepare=prepare)).record.measurements
        assert found.missing == {"torch": "RuntimeError: enough"}
        assert list(found.timings) == ["roofline"]

    def test_a_wrong_output_is_never_timed(self, measure):
        def check(name, output):
            assert output == 1, f"{name} gives {output}"

        def prepare(case, device):
            run = {"roofline": lambda: 1, "torch": lambda: 2}
            return Work(1, 0, run, check=check)

        (found,) = measure(benchmark(prepare=prepare)).record.measurements
        assert list(found.timings) == ["roofline"]
        assert found.missing["torch"].startswith("wrong result: torch gives 2")

    def test_our_failure_leaves_the_case_out_and_the_run_goes_on(self, measure):
        def prepare(case, device):
            def run():
                assert case["n"] != 2, "two is wrong"

            return Work(1, 0, {"roofline": run})

        cases = [Case({"n": n}) for n in (1, 2, 3)]
        outcome = measure(benchmark(cases=cases, prepare=prepare))
        assert [m.case["n"] for m in outcome.record.measurements] == [1, 3]
        (failure,) = outcome.failures
        assert failure.ours
        assert str(failure).startswith("fake n=2 bf16: wrong result: two is wrong")

    def test_a_case_that_cannot_run_here_is_skipped_with_its_reason(self, measure):
        def prepare(case, device):
            raise PeerUnavailable("too small for this cache")

        outcome = measure(benchmark(prepare=prepare), benchmark("other"))
        assert [m.id for m in outcome.record.measurements] == ["other"]
        (failure,) = outcome.failures
        assert not failure.ours
        assert failure.reason == "too small for this cache"

    def test_a_prepare_that_crashes_is_our_failure(self, measure):
        def prepare(case, device):
            raise ZeroDivisionError("oh")

        (failure,) = measure(benchmark(prepare=prepare)).failures
        assert failure.ours
        assert failure.reason == "prepare: ZeroDivisionError: oh"

    def test_steps_are_named(self, measure):
        def prepare(case, device):
            return Work(1, 0, {"roofline": nothing, "naive": nothing, "torch": nothing})

        fake = benchmark(prepare=prepare, steps=("naive", "gone"))
        (found,) = measure(fake).record.measurements
        assert found.steps == ("naive",)

    def test_the_watcher_hears_of_every_case(self, measure):
        steps = []
        cases = [Case({"n": 1}), Case({"n": 2})]
        measure(benchmark("a", cases=cases), benchmark("b"), watch=steps.append)
        assert [(s.done, s.total, s.id, str(s.case)) for s in steps] == [
            (0, 3, "a", "n=1 bf16"),
            (1, 3, "a", "n=2 bf16"),
            (2, 3, "b", "n=10 bf16"),
        ]

    def test_an_interrupted_run_has_what_it_finished_and_says_so(self, measure):
        from roofline.support import runner

        running = runner.measure([benchmark("a"), benchmark("b")], budget=1e-4)
        outcome = next(running)
        (run,) = outcome.record.runs.values()
        assert [m.id for m in outcome.record.measurements] == ["a"]
        assert run.only == ("a",)


class TestCeilings:
    def test_the_ceiling_is_measured_in_the_same_run(self, measure):
        from roofline.support.results import Result, best_value

        cases = [Case({"n": 10}), Case({"n": 10**6})]
        copy = benchmark("copy", cases=cases)
        fake = benchmark(limit="copy", targets=(Target("geomean:best-peer", 1),))
        record = measure(fake, copy, only=["fake"]).record
        (found,) = record.measurements
        (run,) = record.runs.values()
        assert found.id == "fake"
        assert run.only == ("fake",)
        assert run.ceilings["copy"].case == {"n": 10**6}
        assert Result(record, found).limit_value == best_value(run.ceilings["copy"])
        assert record.overall == {"fake": fake.targets}

    def test_only_ceilings_that_are_used_are_kept(self, measure):
        record = measure(
            benchmark("copy"), benchmark("read"), benchmark(limit="copy")
        ).record
        (run,) = record.runs.values()
        assert list(run.ceilings) == ["copy"]

    def test_without_its_ceiling_a_result_has_no_limit(self, measure):
        def prepare(case, device):
            raise PeerUnavailable("no room")

        record = measure(
            benchmark("copy", prepare=prepare), benchmark(limit="copy")
        ).record
        (found,) = record.measurements
        assert found.limit is None

    def test_ceilings_come_first_and_once(self):
        from roofline.support import runner

        copy, a, b = benchmark("copy"), benchmark("a", limit="copy"), benchmark("b")
        c = benchmark("c", limit="copy")
        assert [p.id for p in runner.plan([a, b, c, copy], [])] == [
            "copy",
            "a",
            "b",
            "c",
        ]
        assert [p.id for p in runner.plan([a, b, c, copy], ["c", "b"])] == [
            "b",
            "copy",
            "c",
        ]

    def test_unknown_ids_and_ceilings_are_refused(self):
        from roofline.support import runner

        with pytest.raises(ValueError, match="no benchmark is called 'x'; there are a"):
            runner.plan([benchmark("a")], ["x"])
        with pytest.raises(ValueError, match="'a' has an unknown limit 'copy'"):
            runner.plan([benchmark("a", limit="copy")], [])


CSV = """\
==PROF== Connected to process 7 (/usr/bin/python3.12)
==PROF== Profiling "first" - 0: 0%....50%....100% - 1 pass
"ID","Process ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum"
"","","","byte","byte"
"0","7","first","1,000","20"
"1","7","second, of two","500","30.5"
"2","7","at::cuda::spin_kernel(long)","64","0"
"""
TWICE = CSV + "\n".join(line for line in CSV.splitlines() if '"7"' in line)


class TestCounters:
    @pytest.fixture
    def ncu(self, tmp_path, monkeypatch):
        """A stand-in for ncu that prints `CSV` and keeps what it was asked."""

        def install(output=CSV, status=0):
            program = tmp_path / "ncu"
            (tmp_path / "output").write_text(output)
            program.write_text(
                "#!/bin/sh\n"
                'if [ "$1" = --version ]\n'
                'then echo "Version 2025.3.1.0 (build 1)"; exit; fi\n'
                f'echo "$@" >> {tmp_path}/asked\ncat {tmp_path}/output\nexit {status}\n'
            )
            program.chmod(0o755)
            monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
            return tmp_path / "asked"

        return install

    fake = benchmark(
        cases=[Case({"n": 1}), Case({"n": 10}, count=True)],
        counters={
            "dram_bytes": "dram__bytes_read.sum + dram__bytes_write.sum",
            "dram_reads": "dram__bytes_read.sum",
        },
    )

    def test_sums_metrics_over_kernels_for_each_entry(self, ncu):
        from roofline.support import counters

        asked = ncu(TWICE.replace("500", "400", 1))
        tool, counts = counters.count(
            self.fake, self.fake.cases[1], ["roofline", "torch"]
        )
        assert tool == "ncu 2025.3.1"
        assert counts["roofline"] == {"dram_bytes": 1450.5, "dram_reads": 1400.0}
        assert counts["torch"] == {"dram_bytes": 1550.5, "dram_reads": 1500.0}
        (command,) = asked.read_text().splitlines()
        assert "--clock-control none" in command
        assert "--metrics dram__bytes_read.sum,dram__bytes_write.sum " in command
        asked = '-m roofline.support.counters [["fake", 1, ["roofline", "torch"]]]'
        assert command.endswith(asked)
        _, both = counters.count_all(
            [(self.fake, self.fake.cases[1], [name]) for name in ("roofline", "torch")]
        )
        assert both == [{name: counts[name]} for name in counts]

    @pytest.mark.parametrize(
        ("output", "status", "reason"),
        [
            ("==WARNING== No kernels were profiled.\n", 0, "saw no kernel"),
            (TWICE, 0, "2 calls instead of 1"),
            (CSV.replace("first", "spin_kernel"), 0, "2 calls instead of 1"),
            ("\n".join([*CSV.splitlines()[2:4], CSV.splitlines()[-1]]), 0, "no kernel"),
            (CSV.replace('"1,000"', '"n/a"'), 0, "no number for dram__bytes_read.sum"),
            (
                CSV.replace("dram__bytes_read", "other"),
                0,
                "no number for dram__bytes_read",
            ),
            ("==ERROR== ERR_NVGPUCTRPERM - no permission\n", 1, "ERR_NVGPUCTRPERM"),
            ("", 1, "no output"),
        ],
    )
    def test_says_why_it_could_not(self, ncu, output, status, reason):
        from roofline.support import counters

        ncu(output, status)
        with pytest.raises(counters.CountersUnavailable, match=reason):
            counters.count(self.fake, self.fake.cases[1], ["roofline"])

    def test_says_that_there_is_no_ncu(self, monkeypatch, tmp_path):
        from roofline.support import counters

        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(counters.CountersUnavailable, match="not installed"):
            counters.count(self.fake, self.fake.cases[1], ["roofline"])

    def test_only_sums_of_metrics_are_taken(self):
        from roofline.support.counters import metrics_of

        assert metrics_of("a__b.sum+c__d.max") == ["a__b.sum", "c__d.max"]
        with pytest.raises(ValueError, match="sum of ncu metrics, got 'dram bytes'"):
            metrics_of("dram bytes")

    def test_a_run_on_a_gpu_counts_the_cases_that_ask_for_it(
        self, measure, monkeypatch
    ):
        from roofline import microbench
        from roofline.support import counters, runner
        from roofline.support.record import Device

        monkeypatch.setattr(runner, "device_here", lambda: ("cuda", Device("X"), "1.2"))
        together = microbench.time_together
        monkeypatch.setattr(
            microbench,
            "time_together",
            lambda calls, **o: together(calls, **o | {"device": "cpu"}),
        )
        asked = []

        def count_all(jobs):
            asked.extend((str(case), list(entries)) for _, case, entries in jobs)
            return "ncu 1", [{e: {"dram_bytes": 1.0} for e in job[2]} for job in jobs]

        monkeypatch.setattr(counters, "count_all", count_all)
        record = measure(self.fake).record
        assert asked == [("n=10 bf16", ["roofline", "torch"])]
        assert len(record.measurements) == 2
        (found,) = record.counts
        assert (found.case, found.tool, found.ours) == ({"n": 10}, "ncu 1", "roofline")

        case = replace(self.fake.cases[1], count=("other",))
        measure(replace(self.fake, cases=[case]))
        assert asked[-1] == ("n=10 bf16", ["roofline", "other"])

        assert measure(self.fake, count=False).record.counts == ()

        def refuse(*arguments):
            raise counters.CountersUnavailable("no ncu")

        monkeypatch.setattr(counters, "count_all", refuse)
        outcome = measure(self.fake)
        assert outcome.record.counts == ()
        assert [(f.ours, f.reason) for f in outcome.failures] == [
            (False, "not counted: no ncu")
        ]
