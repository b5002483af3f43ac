"""Profiling beyond the chapter: a GPU's trace by hand, the command, the recorded data."""

from __future__ import annotations

import json

import pytest

from roofline import profiling
from roofline.profiling import Event, in_order
from roofline.support import profile_command, profiles
from roofline.support.bench import Benchmark, Case, Target, Work
from roofline.support.cli import main

torch = pytest.importorskip("torch")


def host(name, start, seconds, kind="op", link=None, inputs=(), lane="thread 1"):
    return Event(name, kind, lane, start, seconds, link, inputs)


def kernel(name, start, seconds, link, lane="stream 7"):
    return Event(name, "kernel", lane, start, seconds, link)


@pytest.fixture
def traced():
    """A step on a GPU: a product, a copy, a wait, and one kernel of somebody else."""
    product = ("bfloat16[64,64]", "bfloat16[64,64]")
    return in_order(
        [
            host("step", 0.0, 10.0, "range"),
            host("mlp", 0.5, 9.0, "range"),
            host("aten::linear", 1.0, 2.0, inputs=product),
            host("aten::mm", 1.2, 1.0, inputs=product),
            host("cudaLaunchKernel", 1.5, 0.5, "call", 1),
            host("aten::copy_", 4.0, 1.0, inputs=("float32[64,64]", "bfloat16[64,64]")),
            host("cudaLaunchKernel", 4.2, 0.5, "call", 2),
            host("cudaMemcpyAsync", 6.0, 0.2, "call", 3),
            host("cudaStreamSynchronize", 6.5, 2.0, "call", 4),
            kernel("gemm", 2.0, 3.0, 1),
            kernel("copy", 5.0, 2.0, 2),
            Event("Memcpy DtoH", "memory", "stream 7", 7.0, 1.0, 3),
            host("cudaLaunchKernel", 1.0, 0.5, "call", 9, lane="thread 2"),
            kernel("stranger", 3.0, 1.0, 9, "stream 8"),
        ]
    )


class TestQuestions:
    def test_a_step_is_what_its_thread_did_and_started(self, traced):
        step = profiling.step_of(traced)
        assert {e.lane for e in step.host} == {"thread 1"}
        assert [e.name for e in step.device] == ["gemm", "copy", "Memcpy DtoH"]

    def test_a_step_starts_at_zero(self, traced):
        later = in_order(
            profiling.replace(e, start=e.start + 5.0) for e in traced.events
        )
        here, there = (profiling.to_json(profiling.step_of(t)) for t in (traced, later))
        assert here == there

    def test_no_such_range(self, traced):
        with pytest.raises(ValueError, match="no range named 'epoch'"):
            profiling.step_of(traced, name="epoch")

    def test_launches_are_calls_and_know_their_kernels(self, traced):
        found = profiling.launches(profiling.step_of(traced))
        assert [f.started[0].name for f in found] == ["gemm", "copy"]
        assert profiling.tally(found) == {"step > mlp": 2}

    def test_only_the_wait_is_a_wait(self, traced):
        (found,) = profiling.syncs(profiling.step_of(traced))
        assert found.event.name == "cudaStreamSynchronize"

    @pytest.mark.parametrize(
        ("name", "waits"),
        [
            ("cudaDeviceSynchronize", True),
            ("cuStreamSynchronize", True),
            ("cudaEventSynchronize", True),
            ("cudaMemcpy", True),
            ("cudaMemcpyAsync", False),
            ("cudaStreamIsCapturing", False),
            ("cudaEventRecord", False),
        ],
    )
    def test_names_of_waits(self, name, waits):
        trace = in_order([host(name, 0.0, 1.0, "call", 1), kernel("k", 0.0, 1.0, 2)])
        assert bool(profiling.syncs(trace)) == waits

    @pytest.mark.parametrize(
        "name", ["cudaLaunchKernelExC", "cuLaunchKernelEx", "cudaGraphLaunch"]
    )
    def test_names_of_launches(self, name):
        trace = in_order([host(name, 0.0, 1.0, "call", 1), kernel("k", 0.0, 1.0, 1)])
        assert len(profiling.launches(trace)) == 1

    def test_a_product_is_counted_once_and_timed_on_the_device(self, traced):
        found = profiling.dtypes_of_matmuls(profiling.step_of(traced))
        assert list(found) == ["bfloat16"]
        (product,) = found["bfloat16"]
        assert (product.event.name, product.device_seconds) == ("aten::linear", 3.0)

    def test_a_cast_is_no_copy(self, traced):
        assert not profiling.copies(traced)
        (cast,) = profiling.casts(traced)
        assert cast.device_seconds == 2.0

    def test_busy_counts_overlap_once(self, traced):
        assert profiling.busy(profiling.step_of(traced)) == 6.0
        assert profiling.busy(traced) == 6.0  # the stranger ran beside the gemm
        assert profiling.busy(in_order([])) == 0.0

    def test_an_empty_trace(self):
        trace = profiling.read_chrome({"traceEvents": []})
        assert trace.events == () and trace.seconds == 0.0
        assert profiling.self_times(trace) == [] and profiling.launches(trace) == []


class TestRecords:
    def test_json_keeps_everything_to_the_nanosecond(self, traced):
        data = json.loads(json.dumps(profiling.to_json(traced)))
        again = profiling.from_json(data)
        assert profiling.to_json(again) == profiling.to_json(traced)
        for old, new in zip(traced.events, again.events, strict=True):
            assert profiling.replace(new, start=old.start, seconds=old.seconds) == old
            assert new.start == pytest.approx(old.start)

    def test_chrome(self):
        entry = {
            "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 5,
            "ts": 2_000_000.5, "dur": 3.0,
            "args": {
                "Input type": ["c10::BFloat16", "", "Scalar"],
                "Input Dims": [[2, 3], [], []],
            },
        }  # fmt: skip
        launch = {
            "ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7,
            "ts": 2_000_010.5, "dur": 1.0, "args": {"correlation": 3, "stream": 7},
        }  # fmt: skip
        other = {"ph": "i", "name": "mark", "ts": 1.0}
        mark = {**entry, "cat": "user_annotation", "name": "## Call x ##"}
        trace = profiling.read_chrome({"traceEvents": [other, launch, entry, mark]})
        assert [e.kind for e in trace.events] == ["op", "op", "kernel"]
        first, last = trace.events[0], trace.events[-1]
        assert (first.lane, first.inputs) == ("thread 5", ("bfloat16[2,3]",))
        assert (last.lane, last.link) == ("stream 7", 3)
        assert last.start == pytest.approx(10e-6)

    def test_record_refuses_no_steps(self):
        with pytest.raises(ValueError, match="at least 1, got 0 and 3"):
            profiling.record(lambda: None, steps=0)

    def test_the_committed_hunt(self):
        found = profiles.hunt()
        assert found.device == "NVIDIA H200"
        assert [s.mended[-1:] for s in found.stages] == [
            (), ("sync",), ("storm",), ("precision",), ("layout",), ("break",)
        ]  # fmt: skip
        for stage in found.stages:
            assert len(stage.samples) >= 5 and stage.trace.device
        times = [stage.seconds for stage in found.stages]
        assert times == sorted(times, reverse=True)

    def test_the_committed_points(self):
        point = profiles.profiled("softmax", cols=16384)
        assert point.moved == point.read + point.written
        assert "counted by ncu" in point.source.text.lower()
        with pytest.raises(profiles.NotProfiled, match="some of add-rms-norm, attention"):
            profiles.profiled("nothing")


class TestRanges:
    def test_a_profiler_that_starts_inside_a_range(self):
        span = profiling.annotate("outer")
        with span:
            with profiling.profiler() as profiler:
                with profiling.annotate("inner"):
                    torch.ones(2)
        names = {row.key for row in profiler.key_averages()}
        assert "inner" in names and "outer" not in names
        assert span._opened is None

    def test_a_profiler_that_stops_inside_a_range(self):
        profiler = profiling.profiler()
        profiler.start()
        with profiling.annotate("outer"):
            profiler.stop()
            with profiling.annotate("inner"):
                pass

    def test_a_method_and_its_name(self):
        class Model:
            @profiling.annotate("forward")
            def forward(self, x, *, twice=False):
                "Runs."
                return x * (2 if twice else 1)

        assert Model().forward(3, twice=True) == 6
        assert Model.forward.__name__ == "forward" and Model.forward.__doc__ == "Runs."


@pytest.fixture
def call(capsys, monkeypatch):
    """The command with one benchmark of nothing; its status, stdout and stderr."""
    from roofline import benchmarks

    def prepare(case, device):
        x = torch.ones(case["n"], device=device)
        run = {"roofline": lambda: x + 1, "torch": lambda: x + 2}
        return Work(8 * case["n"], case["n"], run)

    cases = [
        Case({"n": 64}, dtype="fp32", cpu={"n": 8}),
        Case({"n": 128}, dtype="fp32", targets=(Target("best-peer", 1.0),)),
    ]
    known = [Benchmark("ones", cases, prepare)]
    monkeypatch.setattr(benchmarks, "load", lambda: known)

    def run(*arguments):
        status = main(["profile", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


class TestCommand:
    def test_without_ncu_it_says_so_and_goes_on(self, call, monkeypatch):
        monkeypatch.setenv("PATH", "")
        status, out, err = call("ones")
        assert status == 0
        assert "ncu (Nsight Compute) is not installed" in err
        assert "bytes counted   not counted" in out
        assert "aten::add" in out or "elementwise" in out  # an op here, a kernel on a GPU

    def test_with_ncu_the_bytes_are_the_counted_ones(self, call, monkeypatch):
        from roofline.support import counters

        seen = {"read": 600.0, "written": 424.0, "nanoseconds": 2000.0}

        def count(benchmark, case, entries):
            assert set(benchmark.counters) == set(seen)
            return "ncu 1.2.3", {name: seen for name in entries}

        monkeypatch.setattr(counters, "count", count)
        status, out, _ = call("ones", "--json", "--case", "n=64", "--entry", "torch")
        (point,) = json.loads(out)["points"]
        assert status == 0 and point["counted"] == seen
        assert point["entry"] == "torch" and point["tool"] == "ncu 1.2.3"
        loaded = profiles.Point(point)
        assert loaded.moved == 1024 and loaded.intensity == point["flops"] / 1024
        assert "by `python -m roofline profile ones --case n=64" in loaded.source.text

    def test_points_replace_their_like(self, call, tmp_path):
        path = tmp_path / "points.json"
        for arguments in (["--case", "n=64"], ["--case", "n=64"], ["--case", "n=128"]):
            status, _, err = call("ones", "--tool", "torch", *arguments, "--output", str(path))
            assert status == 0 and f"Wrote {path}" in err
        points = json.loads(path.read_text("utf-8"))["points"]
        assert len(points) == 2

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["twos"], "name must be 'hunt' or one of ones; got 'twos'"),
            (["ones", "--tool", "gdb"], "tool must be 'auto', 'ncu' or 'torch', got 'gdb'"),
            (["ones", "--case", "n=7"], "case must pick one of n=64 fp32; n=128 fp32; got 'n=7'"),
            (["ones", "--case", "seven"], "case must look like rows=16384,cols=8192; got 'seven'"),
            (
                ["ones", "--tool", "torch", "--entry", "best"],
                "entry must be one of roofline, torch; got 'best'",
            ),
            (["ones", "--tool", "ncu"], "ncu (Nsight Compute) is not installed"),
        ],
    )
    def test_mistakes_are_one_line_and_status_2(self, call, monkeypatch, arguments, message):
        monkeypatch.setenv("PATH", "")
        status, out, err = call(*arguments)
        assert (status, out) == (2, "")
        assert err == f"roofline: {message}\n"

    def test_a_record_of_another_device_is_left_alone(self, call, tmp_path):
        path = tmp_path / "points.json"
        path.write_text(json.dumps({"points": [{"source": {"device": "Other"}}]}))
        status, _, err = call("ones", "--tool", "torch", "--output", str(path))
        assert status == 2 and "is of Other, this is" in err

    def test_the_hunt_as_a_table(self):
        text = json.loads((profiles.FOLDER / "nvidia-h200-hunt.json").read_text("utf-8"))
        table = profile_command.hunt_table(text).splitlines()
        assert len(table) == 7 and table[1].endswith("nothing")
        assert table[-1].endswith("sync, storm, precision, layout, break")
