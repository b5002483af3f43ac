"""The command line: what it prints, writes, refuses, and its exit status."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from sample_record import measurement, record, run
from test_bench import benchmark

from roofline.support import storage
from roofline.support.bench import Benchmark, Case, Work
from roofline.support.cli import main
from roofline.support.record import Device


@pytest.fixture
def call(capsys):
    """Run a command; its exit status, stdout and stderr."""

    def run_command(*arguments: str):
        status = main(list(arguments))
        out, err = capsys.readouterr()
        return status, out, err

    return run_command


@pytest.fixture
def measure(call, monkeypatch):
    """`measure` with a few benchmarks of nothing on the CPU, or what it is given."""
    pytest.importorskip("triton")
    from roofline import benchmarks
    from roofline.support import environment, runner

    known = [benchmark("copy"), benchmark("fake", limit="copy")]

    def run_command(*arguments: str, known=known, device=("cpu", Device("CPU"), None)):
        monkeypatch.setattr(benchmarks, "load", lambda: known)
        monkeypatch.setattr(environment, "device_here", lambda: device)
        monkeypatch.setattr(runner, "device_here", lambda: device)
        return call("measure", "--budget", "0.001", *arguments)

    return run_command


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["bogus"], "No such command 'bogus'."),
            (["measure", "--bogus"], "No such option: --bogus"),
            (
                ["record", "--path", "/nowhere/x.json"],
                "there is no record /nowhere/x.json",
            ),
            (
                ["record", "--device", "Other"],
                "measure one: python -m roofline measure",
            ),
        ],
    )
    def test_are_one_line_and_status_2(self, call, arguments, message):
        status, out, err = call(*arguments)
        assert status == 2
        assert out == ""
        assert err.startswith("roofline: ")
        assert message in err
        assert err.count("\n") == 1

    def test_a_broken_record_is_one_too(self, call, tmp_path):
        path = tmp_path / "x.json"
        path.write_text("{}")
        status, _, err = call("record", "--path", str(path))
        assert (status, err) == (
            2,
            f"roofline: {path}: top level: expected schema 1, found none\n",
        )


class TestHelp:
    def test_without_a_command(self, call):
        status, out, _ = call()
        assert status == 0
        for command in ("measure", "record", "devices", "discover"):
            assert command in out

    @pytest.mark.parametrize("command", ["measure", "record", "devices", "discover"])
    def test_each_command_has_an_example(self, call, command):
        status, out, _ = call(command, "--help")
        assert status == 0
        assert f"Example: python -m roofline {command}" in out

    def test_version(self, call):
        import roofline

        assert call("--version")[1].strip() == roofline.__version__


class TestMeasure:
    def test_writes_a_record_and_prints_it(self, measure, tmp_path):
        path = tmp_path / "out" / "cpu.json"
        status, out, err = measure("--output", str(path))
        assert status == 0
        found = storage.load(path)
        assert found.device.name == "CPU"
        assert [m.id for m in found.measurements] == ["copy", "fake"]
        assert "fake" in out and "n=10 bf16" in out
        assert re.search(r"^\[2/2\] +\d+ s  fake n=10 bf16$", err, re.MULTILINE)
        assert f"Wrote {path}" in err

    def test_a_part_says_so_and_leaves_the_rest(self, measure, tmp_path):
        path = tmp_path / "cpu.json"
        measure("--output", str(path))
        (before,) = storage.load(path).runs
        storage.save(_renamed(storage.load(path), before, "before"), path)
        status, out, _ = measure("--only", "fake", "--output", str(path))
        assert status == 0
        assert "copy" not in out
        found = storage.load(path)
        old, new = found.measurements
        assert old.run == "before"
        part = found.runs[new.run]
        assert part.only == ("fake",)
        assert part.command == "python -m roofline measure --only fake --quick"
        assert list(part.ceilings) == ["copy"]

    def test_on_a_cpu_needs_an_output(self, measure):
        status, _, err = measure()
        assert (status, "--output" in err, err.count("\n")) == (2, True, 1)

    def test_a_quick_run_on_a_gpu_needs_one_too(self, measure):
        status, _, err = measure("--quick", device=("cuda", Device("X"), "1"))
        assert status == 2
        assert "a quick run is no record of the device" in err

    def test_refuses_an_unknown_benchmark(self, measure, tmp_path):
        path = tmp_path / "x.json"
        status, _, err = measure("--only", "bogus", "--output", str(path))
        assert status == 2
        assert err == (
            "roofline: no benchmark is called 'bogus'; there are copy, fake\n"
        )
        assert not path.exists()

    def test_refuses_to_mix_small_and_full_sizes(self, measure, tmp_path):
        path = tmp_path / "x.json"
        storage.save(record(device=Device("CPU")), path)
        before = path.read_bytes()
        status, _, err = measure("--output", str(path))
        assert status == 2
        assert "holds full sizes; a quick run takes another --output" in err
        assert path.read_bytes() == before

    def test_refuses_the_record_of_another_device(self, measure, tmp_path):
        path = tmp_path / "x.json"
        quick = {"run-1": run(quick=True)}
        storage.save(record(runs=quick), path)
        status, _, err = measure("--output", str(path))
        assert status == 2
        assert "is a record of Test GPU 9000, this is CPU" in err

    def test_a_failure_of_ours_is_listed_and_status_1(self, measure, tmp_path):
        def prepare(case, device):
            def run():
                raise RuntimeError("boom [x]")

            return Work(1, 0, {"roofline": run})

        broken = Benchmark("broken", [Case({"n": 1})], prepare)
        path = tmp_path / "x.json"
        status, _, err = measure(
            "--output", str(path), known=[broken, benchmark("fine")]
        )
        assert status == 1
        assert "FAILED broken n=1 bf16: RuntimeError: boom [x]" in err
        assert [m.id for m in storage.load(path).measurements] == ["fine"]

    def test_the_real_thing_in_a_pipe(self, tmp_path):
        pytest.importorskip("triton")
        path = tmp_path / "cpu.json"
        done = subprocess.run(
            [sys.executable, "-m", "roofline", "measure", "--quick", "--only", "copy"]
            + ["--output", str(path)],
            capture_output=True,
            text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
        assert done.returncode == 0, done.stderr
        assert "copy" in done.stdout
        assert "\x1b" not in done.stdout + done.stderr
        assert storage.load(path).measurements[0].id == "copy"

    def test_without_torch_says_what_to_install(self):
        code = (
            "import sys; sys.modules['torch'] = None\n"
            "from roofline.support.cli import main\n"
            "raise SystemExit(main(['measure', '--output', 'x.json']))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True
        )
        assert done.returncode == 2
        assert done.stderr == (
            "roofline: measuring needs torch, which is not installed: "
            "pip install 'roofline[kernels]'\n"
        )


def _renamed(found, old, new):
    text = json.dumps(storage.to_json(found), default=vars).replace(old, new)
    from roofline.support.schema import read_record

    return read_record(json.loads(text))


class TestRecord:
    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / "x.json"
        storage.save(record(), path)
        return str(path)

    def test_prints_values_fractions_peers_and_targets(self, call, path):
        status, out, _ = call("record", "--path", path)
        assert status == 0
        for words in (
            "Test GPU 9000",
            "2026-11-30: python -m roofline measure (driver 580.1, python 3.12.3",
            "rows=16384 cols=8192 bf16",
            "4.00 TB/s",
            "100%",
            "torch.compile 2.00 TB/s, ×2.00",
            "step naive 1.00 TB/s, ×4.00",
            "liger: liger_kernel is not installed",
            "met limit ≥ 0.93: 1.000",
            "NOT met peer:torch ≥ 4: 3.000",
            "NOT met peer:liger ≥ 1: unknown",
            "met naive: peer:torch ≥ 0.7: 0.750",
            "met counter:dram_bytes:torch ≤ 0.52: 0.500",
            "met geomean:peer:torch ≥ 2.5: 3.000",
            "dram_bytes 1e+09",
        ):
            assert words in out

    def test_json_has_it_all(self, call, path):
        status, out, _ = call("record", "--path", path, "--json")
        assert status == 0
        data = json.loads(out)
        assert data["device"] == "Test GPU 9000"
        assert data["runs"]["run-1"]["versions"]["torch"] == "2.11.0"
        assert data["counts"][0]["entries"]["torch"] == {"dram_bytes": 2e9}
        assert data["overall"]["softmax"][0]["met"] is True
        copied, softmax, *_ = data["results"]
        assert (copied["fraction"], copied["met"]) == (None, None)
        assert softmax["id"] == "softmax"
        assert softmax["case"] == {"rows": 16384, "cols": 8192}
        assert softmax["dtype"] == "bf16"
        assert softmax["unit"] == "B/s"
        assert softmax["value"] == pytest.approx(4e12)
        assert softmax["fraction"] == pytest.approx(1.0)
        assert softmax["peers"]["torch"] == pytest.approx(
            {"value": 4e12 / 3, "ratio": 3}
        )
        assert softmax["missing"] == {"liger": "liger_kernel is not installed"}
        assert softmax["targets"][0] == {
            "kind": "limit",
            "entry": None,
            "at_least": 0.93,
            "value": pytest.approx(1.0),
            "met": True,
        }
        assert softmax["targets"][3]["value"] is None
        assert softmax["met"] is False

    def test_finds_the_record_of_a_device(self, call, tmp_path, monkeypatch):
        monkeypatch.setattr(storage, "FOLDER", tmp_path)
        storage.save(record(), tmp_path / "test-gpu-9000.json")
        for name in ("Test GPU 9000", "test-gpu-9000"):
            assert call("record", "--device", name)[0] == 0
        status, _, err = call("record")
        assert status == 2
        assert "there are test-gpu-9000" in err

    def test_names_with_brackets_print_as_they_are(self, call, tmp_path):
        odd = measurement(missing={"x[y]": "wants [z]"}, case={"a": "[b]"}, targets=())
        storage.save(record(measurements=(odd,), counts=()), tmp_path / "x.json")
        _, out, _ = call("record", "--path", str(tmp_path / "x.json"))
        assert "x[y]: wants [z]" in out
        assert "a=[b]" in out


class TestDevices:
    def test_table(self, call):
        status, out, _ = call("devices")
        assert status == 0
        (row,) = [line for line in out.splitlines() if line.startswith("H200 ")]
        assert "4.80 TB/s" in row
        assert "989 TFLOP/s" in row

    def test_json(self, call):
        rows = {row["name"]: row for row in json.loads(call("devices", "--json")[1])}
        assert rows["H200"]["bandwidth"] == 4.8e12
        assert rows["T4"]["peaks"]["fp16"] == 65e12

    def test_discover(self, call):
        pytest.importorskip("torch")
        status, out, _ = call("discover")
        assert status == 0
        assert out.strip()


class TestPackage:
    """`import roofline`: light, lazy, and the same whatever was imported first."""

    def run(self, code: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def test_needs_nothing_heavy(self):
        heavy = "('torch', 'triton', 'numpy', 'typer', 'rich', 'matplotlib', 'tomllib')"
        code = f"import sys, roofline; print([m for m in {heavy} if m in sys.modules])"
        assert self.run(code) == "[]"

    def test_functions_are_had_lazily(self):
        code = "import roofline; print(roofline.gpu('H200').name, roofline.__version__)"
        name, version = self.run(code).split()
        assert name == "H200"
        assert version

    def test_dir_lists_functions_whose_modules_exist(self):
        import roofline

        assert {"gpu", "ridge", "discover", "__version__"} <= set(dir(roofline))
        for name, module in roofline._FUNCTIONS.items():
            assert (name in dir(roofline)) == roofline._there(module)

    def test_every_name_it_lists_is_there(self):
        pytest.importorskip("triton")
        import roofline

        for name in dir(roofline):
            if not name.startswith("_"):
                assert callable(getattr(roofline, name)), name

    def test_an_unknown_name_is_an_attribute_error(self):
        import roofline

        with pytest.raises(AttributeError, match="no attribute 'sotfmax'"):
            roofline.sotfmax
        with pytest.raises(ImportError):
            exec("from roofline import sotfmax")

    @pytest.mark.parametrize(
        "first",
        ["import roofline.fake", "from roofline.fake import other", "import roofline"],
    )
    def test_a_function_wins_over_the_module_of_its_name(self, tmp_path, first):
        (tmp_path / "fake.py").write_text(
            "def fake(): return 1\ndef other(): return 2\n"
        )
        code = (
            "import roofline\n"
            f"roofline.__path__.append({str(tmp_path)!r})\n"
            "roofline._FUNCTIONS['fake'] = 'fake'\n"
            f"{first}\n"
            "from roofline.fake import other\n"
            "from roofline import fake\n"
            "print(fake(), roofline.fake(), other(), 'fake' in dir(roofline))"
        )
        assert self.run(code) == "1 1 2 True"

    def test_a_missing_extra_says_what_to_install(self, tmp_path):
        (tmp_path / "fake.py").write_text("import triton.language\n")
        code = (
            "import sys, roofline\n"
            "sys.modules['triton'] = None\n"
            f"roofline.__path__.append({str(tmp_path)!r})\n"
            "roofline._FUNCTIONS['fake'] = 'fake'\n"
            "try: from roofline import fake\n"
            "except ImportError as error: print(error)"
        )
        assert self.run(code) == (
            "roofline.fake needs triton, which is not installed: "
            "pip install 'roofline[kernels]'"
        )
