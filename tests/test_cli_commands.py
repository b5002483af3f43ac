"""The commands that compute: devices, discover, estimate, plot, xray."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from roofline.support.cli import main

COMMANDS = (
    "devices", "discover", "estimate", "measure", "plot", "profile", "record", "xray"
)  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256, "hidden_act": "silu", "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def call(capsys):
    """Run a command; its exit status, stdout and stderr."""

    def run_command(*arguments: str):
        status = main(list(arguments))
        out, err = capsys.readouterr()
        return status, out, err

    return run_command


@pytest.fixture
def refused(call):
    """Run a command that must fail: status 2, nothing on stdout, one line of why."""

    def run_command(*arguments: str) -> str:
        status, out, err = call(*arguments)
        assert (status, out) == (2, "")
        assert err.startswith("roofline: ") and err.count("\n") == 1
        return err

    return run_command


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_that_can_be_typed(call, command):
    status, out, _ = call(command, "--help")
    assert status == 0
    assert f"Example: python -m roofline {command}" in " ".join(out.split())
    assert "--json" in out


def shell(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "roofline", *arguments],
        capture_output=True, text=True, **options,
    )  # fmt: skip


class TestInAPipe:
    def test_no_colours_and_no_progress(self):
        done = shell("estimate", "--model", "llama-3-8b")
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout and "llama-3-8b" in done.stdout

    def test_a_reader_that_leaves_is_no_error(self):
        code = "exec python -m roofline devices --json | head -c 10"
        path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {code}"],
            capture_output=True, text=True, env={**os.environ, "PATH": path},
        )  # fmt: skip
        assert done.returncode in (0, 1)  # what Click makes of a closed pipe
        assert done.stderr == ""


class TestDevices:
    def names(self, call, *arguments):
        status, out, _ = call("devices", *arguments, "--json")
        assert status == 0
        return {row["name"]: row for row in json.loads(out)}

    def test_words_find_names_and_architectures(self, call):
        assert set(self.names(call, "h200")) == {"H200", "GH200-96GB", "GH200-144GB"}
        assert {"T4"} == set(self.names(call, "turing"))
        assert "T4" in self.names(call, "turing", "amd")

    def test_filters_combine(self, call):
        found = self.names(call, "NVIDIA", "--dtype", "fp4", "--memory", "200")
        assert set(found) == {"B300", "Rubin"}
        assert all(row["grade"] == "secondary" for row in found.values())
        assert not set(found) & set(self.names(call, "--grade", "datasheet"))

    def test_ridges_are_computed(self, call):
        row = self.names(call, "h200")["H200"]
        assert row["ridges"]["bf16"] == pytest.approx(989 / 4.8)
        assert row["ridges"]["fp8"] == pytest.approx(1979 / 4.8)

    def test_nothing_found(self, call, refused):
        assert "no GPU" in refused("devices", "quantum")
        assert self.names(call, "quantum") == {}

    def test_mistakes(self, refused):
        assert "dtype must be one of" in refused("devices", "--dtype", "fp5")
        assert "grade must be one of" in refused("devices", "--grade", "rumour")


def test_discover_as_json(call):
    pytest.importorskip("torch")
    status, out, _ = call("discover", "--json")
    assert status == 0
    assert json.loads(out)["kind"] in ("cpu", "cuda")


class TestEstimate:
    def data(self, call, *arguments):
        status, out, err = call("estimate", *arguments, "--json")
        assert status == 0, err
        return json.loads(out)

    def test_a_config_and_the_shipped_shape_agree(self, call, tmp_path):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(LLAMA))
        own = self.data(call, "--model", str(path))
        shipped = self.data(call, "--model", "llama-3-8b")
        assert own["memory"] == shipped["memory"]
        assert own["limits"] == shipped["limits"]
        assert own["model"]["parameters"] == 8_030_261_248

    @pytest.mark.parametrize(
        ("file", "name"), [("my-model/config.json", "my-model"), ("models/mine.json", "mine")]
    )
    def test_a_model_is_called_by_what_tells_it_apart(self, call, tmp_path, file, name):
        path = tmp_path / file
        path.parent.mkdir()
        path.write_text(json.dumps(LLAMA))
        assert self.data(call, "--model", str(path))["model"]["name"] == name

    def test_the_bound_is_the_chapters(self, call):
        from roofline.hardware import gpu
        from roofline.serving import decode_point, largest_batch, llm

        found = self.data(
            call, "--model", "llama-3-70b", "--gpu", "H200", "--tp", "2",
            "--dtype", "fp8", "--batch", "32", "--context", "8192",
        )  # fmt: skip
        model, card = llm("llama-3-70b"), gpu("H200")
        point = decode_point(model, card, "fp8", 32, 8192, gpus=2)
        printed = found["limits"]["printed"]
        assert printed["decode_seconds"] == point.seconds
        assert printed["decode_bound_by"] == "memory"
        most = largest_batch(model, card, 8192, weights="fp8", gpus=2)
        assert found["memory"]["largest_batch"] == most
        measured = found["limits"]["measured"]
        assert measured["decode_seconds"] > printed["decode_seconds"]
        assert measured["first_token_seconds"] > printed["first_token_seconds"]

    def test_every_shipped_model_has_its_published_size(self, call):
        from roofline.serving import published

        for row in published("size"):
            cards = ("--gpu", "B200", "--tp", "4", "--context", "128")
            found = self.data(call, "--model", row["model"], *cards)
            assert found["model"]["parameters"] == pytest.approx(
                row["parameters"], rel=0.01
            )
            large = row["model"] in ("deepseek-v3", "llama-3.1-405b")
            assert found["memory"]["fits"] is not large

    def test_prints_every_assumption(self, call):
        status, out, _ = call(
            "estimate", "--model", "mixtral-8x7b", "--tp", "2", "--price", "3",
            "--latency", "10", "--context", "65536",
        )  # fmt: skip
        assert status == 0
        out = " ".join(out.split())
        for words in (
            "H200: 141 GB at 4.80 TB/s, bf16 989 TFLOP/s dense (datasheet",
            "in 16 bits", "No two sequences share a prefix", "90% of the memory",
            "draws its experts evenly", "450 GB/s in each direction, and 10.0 µs",
            "costs 3 an hour", "made for 32,768 tokens", "It fits. The largest batch",
        ):  # fmt: skip
            assert words in out, words

    def test_says_so_when_it_does_not_fit(self, call):
        arguments = ("--model", "llama-3-70b", "--gpu", "H100 SXM")
        found = self.data(call, *arguments)
        assert found["memory"]["fits"] is False
        assert found["memory"]["largest_batch"] == 0
        assert found["memory"]["gpus_that_hold_it"] == 2
        assert "IT DOES NOT FIT" in call("estimate", *arguments)[1]

    def test_price_follows_throughput(self, call):
        one = self.data(call, "--model", "gemma-2b", "--price", "2")["limits"]["printed"]
        expected = 2 / 3600 * one["decode_seconds"] * 1e6
        assert one["price_per_million_decode"] == pytest.approx(expected)
        assert one["price_per_million_loaded"] > one["price_per_million_decode"]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--model", "gpt-9"], "model 'gpt-9' is no file, nor one of deepseek-v3"),
            (["--model", "gemma-2b", "--gpu", "H100"], "near it: H100 SXM, H100 PCIe"),
            (["--model", "gemma-2b", "--dtype", "fp5"], "--dtype must be one of"),
            (["--model", "gemma-2b", "--kv-dtype", "x"], "--kv-dtype must be one of"),
            (["--model", "gemma-2b", "--tp", "3"], "--tp must divide the 8 heads"),
            (["--model", "gemma-2b", "--batch", "0"], "Invalid value for '--batch'"),
            (["--model", "gemma-2b", "--usable", "2"], "usable must be"),
            (["--model", "gemma-2b", "--price", "-1"], "price must be above 0"),
            (["--model", "gemma-2b", "--output", "9999"], "output must be from 1"),
            (["--model", "gemma-2b", "--gpu", "L4", "--tp", "2"], "link must be given"),
            ([], "Missing option '--model'"),
        ],
    )
    def test_mistakes_are_named(self, refused, arguments, message):
        assert message in refused("estimate", *arguments)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "is not JSON"),
            ("[]", "its top level is not an object"),
            ("{}", "model_type is None"),
            (json.dumps(LLAMA | {"wings": 2}), "wings is not understood"),
            (json.dumps(LLAMA | {"hidden_size": "4096"}), "hidden_size must be"),
        ],
    )
    def test_a_bad_config_is_refused_by_field(self, refused, tmp_path, text, message):
        path = tmp_path / "config.json"
        path.write_text(text)
        error = refused("estimate", "--model", str(path))
        assert message in error and str(path) in error


class TestPlot:
    POINT = "mine,2e12,1e9,4e-2"

    @pytest.mark.parametrize("kind", ["svg", "png", "html"])
    def test_writes_each_kind(self, call, tmp_path, kind):
        pytest.importorskip("matplotlib")
        path = tmp_path / "deep" / f"roofline.{kind}"
        status, out, _ = call(
            "plot", "--gpu", "T4", "--gpu", "B200", "--kernel", "softmax:cols=8192",
            "--point", self.POINT, "--output", str(path),
        )  # fmt: skip
        assert (status, out) == (0, f"Wrote {path}\n")
        data = path.read_bytes()
        if kind == "png":
            assert data[:8] == b"\x89PNG\r\n\x1a\n"
        else:
            text = data.decode()
            assert "T4" in text and "B200" in text and "mine" in text
            assert "{{" not in text and "http://" not in text.replace(
                "http://www.w3.org", ""
            ).replace("http://purl.org", "").replace("http://creativecommons.org", "")

    def test_data(self, call, tmp_path):
        status, out, _ = call(
            "plot", "--point", self.POINT, "--json",
            "--output", str(tmp_path / "x.html"),
        )  # fmt: skip
        assert status == 0
        data = json.loads(out)
        (roof,), (point,) = data["roofs"], data["points"]
        assert (roof["name"], roof["dtype"]) == ("H200", "bf16")
        assert point["intensity"] == 2000
        assert point["throughput"] == pytest.approx(5e13)
        assert point["attainable"] == {"H200": 989e12}

    def test_a_name_cannot_break_out_of_the_page(self, call, tmp_path):
        path = tmp_path / "x.html"
        name = "</script><b>"
        assert call("plot", "--point", f"{name},1,1,1", "--output", str(path))[0] == 0
        assert name not in path.read_text()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--output", "x.pdf"], "output must end in .svg, .png, .html"),
            (["--output", "x.svg", "--gpu", "H300"], "no GPU is called exactly"),
            (["--output", "x.svg", "--dtype", "fp5"], "dtype must be one of"),
            (["--output", "x.svg", "--gpu", "T4", "--dtype", "fp8"], "no dense fp8"),
            (["--output", "x.svg", "--point", "a,1,2"], "name,flops,bytes,seconds"),
            (["--output", "x.svg", "--point", "a,1,0,3"], "bytes of point 'a' must be"),
            (["--output", "x.svg", "--point", "a,x,1,3"], "flops of point 'a' must be"),
            (["--output", "x.svg", "--kernel", "sotfmax"], "holds no 'sotfmax'"),
            (["--output", "x.svg", "--kernel", "copy"], "does no FLOPs"),
            ([], "Missing option '--output'"),
        ],
    )
    def test_mistakes_are_named(self, refused, monkeypatch, tmp_path, arguments, message):
        monkeypatch.chdir(tmp_path)
        assert message in refused("plot", *arguments)
        assert not list(tmp_path.iterdir())


class TestXray:
    @pytest.fixture(autouse=True)
    def there(self):
        pytest.importorskip("triton")

    def test_as_json(self, call):
        status, out, _ = call("xray", "softmax", "--target", "sm_90", "--json")
        assert status == 0
        (report,) = json.loads(out)
        assert (report["name"], report["target"]) == ("softmax", "sm_90")
        assert report["registers"] > 0

    def test_an_unknown_kernel(self, refused):
        assert "no report of 'nope'" in refused("xray", "nope", "--json")
