"""What the chapter on torch.compile leaves out: modules, libraries, errors, odd outputs."""

from __future__ import annotations

import contextlib
import json
import linecache
import logging
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from roofline import compiling  # noqa: E402
from roofline.compiling import (  # noqa: E402
    Comparison, Disagreement, Graphs, compare, graph_breaks, graphs, kernels,
    recompiles, rms_norm_op,
)  # fmt: skip
from roofline.support import inductor_source  # noqa: E402

HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def _forgotten():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def branch(x, *, above=0.0):
    if x.sum() > above:
        return x + 1
    return x - 1


def helper(x):
    print("from the helper")
    return x * 2


def nested(x):
    return helper(x + 1) + 1


# Breaks


def test_a_break_names_the_users_line():
    (found,) = graph_breaks(branch, torch.ones(3), above=1.0)
    assert Path(found.file).name == HERE
    assert found.code == "if x.sum() > above:" == linecache.getline(found.file, found.line).strip()
    assert not found.abandoned and found.hints and "branching" in found.explanation
    assert str(found).startswith(f"{HERE}:{found.line}: ") and found.code in str(found)


def test_a_break_in_a_helper_is_the_helpers():
    found = graph_breaks(nested, torch.ones(3))
    assert {each.code for each in found} == {'print("from the helper")'}


def test_a_called_function_that_is_abandoned_is_said_to_be():
    def guarded(x):
        try:
            print("guarded")
            return x.exp()
        except OverflowError:
            return x

    found = graph_breaks(lambda x: guarded(x + 1) * 2, torch.ones(3))
    assert [(each.code, each.abandoned) for each in found] == [('print("guarded")', True)]


def test_a_break_inside_a_library_is_the_callers():
    def dumped(x):
        y = x + 1
        json.dumps({"a": 1})
        return y * 2

    found = graph_breaks(dumped, torch.ones(3))
    assert found and {each.code for each in found} == {'json.dumps({"a": 1})'}


def test_a_break_without_a_graph_before_it_is_found():
    """explain() counts graphs, and here is only one."""

    def printed(x):
        print("first")
        return x + 1

    (found,) = graph_breaks(printed, torch.ones(3))
    assert found.code == 'print("first")'


@pytest.mark.parametrize("way", ["function", "compiled", "module", "compiled module", "twice"])
def test_whatever_was_compiled_can_be_asked(way):
    class Layer(torch.nn.Module):
        def forward(self, x):
            return branch(x)

    asked = {
        "function": lambda: branch,
        "compiled": lambda: torch.compile(branch, backend="eager"),
        "module": Layer,
        "compiled module": lambda: torch.compile(Layer(), backend="eager"),
        "twice": lambda: torch.compile(torch.compile(branch, backend="eager"), backend="eager"),
    }[way]()
    asked(torch.ones(3))  # compiled already, where it can be
    assert [each.code for each in graph_breaks(asked, torch.ones(3))] == ["if x.sum() > above:"]


def test_what_the_function_raises_is_raised_and_the_log_is_as_before():
    def fails(x):
        print("so far")
        raise KeyError("mine")

    log = torch._logging.getArtifactLogger("torch._dynamo.symbolic_convert", "graph_breaks")
    before = (log.level, log.propagate, list(log.handlers), log.isEnabledFor(logging.DEBUG))
    with pytest.raises(KeyError, match="mine"):
        graph_breaks(fails, torch.ones(3))
    assert (
        log.level, log.propagate, list(log.handlers), log.isEnabledFor(logging.DEBUG)
    ) == before  # fmt: skip
    assert len(graph_breaks(branch, torch.ones(3))) == 1


def test_bad_functions_are_refused():
    with pytest.raises(TypeError, match="fn must be a function or a module, got 3"):
        graph_breaks(3)
    hidden = torch.compiler.disable(branch)
    with pytest.raises(ValueError, match="hidden by torch.compiler.disable"):
        graph_breaks(hidden, torch.ones(3))


# Recompiles


def test_recompiles_name_function_line_and_guard():
    compiled = torch.compile(branch, backend="eager", dynamic=False)
    with recompiles() as seen:
        compiled(torch.ones(3))
        assert seen == []  # filled at the end
        compiled(torch.ones(4))
    first = seen[0]
    assert first.function == "branch" and Path(first.file).name == HERE and not first.gave_up
    assert first.line == branch.__code__.co_firstlineno and "expected 3, actual 4" in first.reason


def test_recompiles_are_told_when_the_body_raises_and_can_nest():
    compiled = torch.compile(torch.neg, backend="eager", dynamic=False)
    with recompiles() as outer:
        with contextlib.suppress(KeyError), recompiles() as inner:
            compiled(torch.ones(3))
            compiled(torch.ones(4))
            raise KeyError
        compiled(torch.ones(5))
    assert (len(inner), len(outer)) == (1, 2)


# Graphs


def test_graphs_of_a_broken_function_pair_up():
    weight = torch.randn(4, requires_grad=True)

    def broken(x):
        y = torch.sin(x * weight)
        print("between")
        return torch.cos(y * 3).sum()

    first, second = graphs(broken, torch.randn(4))
    assert "sin.default" in Graphs.operations(first.forward)
    assert "cos.default" in Graphs.operations(second.forward)
    assert "cos.default" in Graphs.operations(first.backward)  # the derivative of sin
    assert "sin.default" in Graphs.operations(second.backward)
    assert weight.grad is None and sum(second.saved.values()) > 0


def test_graphs_of_a_module_leave_its_gradients_alone():
    module = torch.nn.Linear(4, 3)
    (pair,) = graphs(module, torch.randn(2, 4))
    assert pair.backward is not None and module.weight.grad is None
    assert Graphs.operations(None) == ()


# Kernels


def test_the_plan_of_a_module_and_of_keyword_arguments():
    (one,) = kernels(torch.nn.GELU(), torch.randn(8, 8))
    assert one.bytes == 2 * 8 * 8 * 4 and not one.library
    (scaled,) = kernels(lambda x, *, by: x * by, torch.randn(16), by=torch.tensor(2.0))
    assert scaled.reads == 16 * 4 + 4 and scaled.operations == ("mul",)


def test_kernels_raises_what_inductor_raises(monkeypatch):
    def fails(nodes):
        raise ZeroDivisionError("inside")
        yield

    monkeypatch.setattr(compiling, "_planned", fails)
    with pytest.raises(Exception, match="inside"):
        kernels(torch.neg, torch.ones(3))


# The operator


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_operators_gradient(shape, dtype):
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype).requires_grad_()
    weight = torch.randn(shape[-1]).to(dtype).requires_grad_()
    upstream = torch.randn(shape).to(dtype)
    ours = torch.autograd.grad(rms_norm_op(x, weight, 1e-5), (x, weight), upstream)
    wide = [t.detach().double().requires_grad_() for t in (x, weight)]
    norm = torch.nn.functional.rms_norm(wide[0], shape[-1:], wide[1], 1e-5)
    right = torch.autograd.grad(norm, wide, upstream.double())
    for got, want, leaf in zip(ours, right, (x, weight), strict=True):
        assert (got.dtype, got.shape) == (leaf.dtype, leaf.shape)
        error = (got.double() - want).norm() / want.norm()
        assert error < (1e-6 if dtype == torch.float32 else 1e-2)


def test_the_operator_compiles_whole_with_its_gradient():
    def layer(x, weight):
        return rms_norm_op(x * 2, weight, 1e-6).sum()

    whole = torch.compile(layer, backend="aot_eager", fullgraph=True)
    grads = []
    for function in (whole, layer):
        x = torch.linspace(-1, 2, 30).reshape(3, 10).requires_grad_()
        function(x, torch.ones(10)).backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


def test_the_operator_refuses_what_the_function_refuses():
    with pytest.raises(ValueError, match="weight"):
        rms_norm_op(torch.ones(2, 4), torch.ones(3), 1e-6)


# The comparison


def test_a_comparison_of_a_function_that_changes_its_input():
    x = torch.zeros(4)
    seen = compare(lambda x: x.add_(1), (x,), backend="aot_eager")
    assert seen.error == 0 and torch.equal(x, torch.zeros(4))
    assert min(seen.cold, seen.warm, seen.steady, seen.eager) > 0
    assert seen.speedup == seen.eager / seen.steady


def test_what_a_comparison_adds_up_to():
    assert Comparison(3.0, 1.0, 1.0, 2.0, 0.0).pays_after == 1.0
    assert Comparison(3.0, 1.0, 2.0, 2.0, 0.0).pays_after == math.inf


def broken_by(change):
    """A backend whose results are changed."""

    def backend(graph, inputs):
        return lambda *args: tuple(change(out) for out in graph.forward(*args))

    return backend


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda out: out * (1 + 1e-3), r"result .* is off by 1\.0e-03 of its norm, more than 1e-05"),
        (lambda out: out.double(), r"result .* torch.float64, not \(3, 4\) and torch.float32"),
        (lambda out: out[:2], r"shape \(2, 4\)"),
        (lambda out: out * math.nan, "off by inf"),
    ],
)
def test_a_disagreement_says_how_large_it_is(change, message):
    x = torch.linspace(1, 2, 12).reshape(3, 4)
    with pytest.raises(Disagreement, match=message):
        compare(lambda x: x * 2, (x,), backend=broken_by(change))


def test_infinities_and_nans_that_agree_do():
    x = torch.tensor([1.0, math.inf, -math.inf, math.nan, 0.0])
    assert compare(lambda x: x * 2, (x,), backend="eager").error == 0


def test_an_input_that_is_changed_otherwise_is_a_disagreement():
    def forgets(graph, inputs):
        return lambda *args: graph.forward(*(a.clone() for a in args))

    def changes(x):
        x.mul_(2)
        return x.sum()

    with pytest.raises(Disagreement, match="input, changed in place"):
        compare(changes, (torch.ones(3),), backend=forgets)


def test_tolerance_and_arguments_of_a_comparison():
    slightly = broken_by(lambda out: out * (1 + 1e-3))
    x = torch.ones(3)
    assert compare(torch.neg, (x,), tolerance=1e-2, backend=slightly).error > 1e-4
    with pytest.raises(TypeError, match=r"args must be a tuple, got Tensor: \(x,\) is one"):
        compare(torch.neg, x)
    with pytest.raises(ValueError, match="tolerance must be 0 or above, got -1"):
        compare(torch.neg, (x,), tolerance=-1)


def test_a_comparison_restores_the_caches_whatever_happens(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/tmp/mine")
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)

    def fails(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        compare(fails, (torch.ones(2),), backend="eager")
    with pytest.raises(KeyError, match="inside"), compiling.caches_in("/tmp/other"):
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/tmp/other"
        raise KeyError("inside")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/tmp/mine"
    assert "TRITON_CACHE_DIR" not in os.environ


# What Inductor writes for a GPU


def test_inductor_still_writes_what_the_book_shows():
    """Without a GPU: as many loads and stores of a row as in the committed kernels."""
    program = """
import torch
from roofline.support import inductor_source as source
for cols in (1024, 8192):
    code = source.triton_source(lambda x: torch.softmax(x, -1), (64, cols))
    (kernel,) = source.kernels(code)
    print(*(kernel.count(line) for line in ("tl.load(in_ptr0 +", "tl.store(", "tl.range(")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kept = [inductor_source.committed(f"softmax-{cols}") for cols in (1024, 8192)]
    lines = ("tl.load(in_ptr0 +", "tl.store(", "tl.range(")
    expected = [" ".join(str(kernel.count(line)) for line in lines) for kernel in kept]
    assert done.stdout.splitlines() == expected == ["1 1 0", "2 1 2"]


# The benchmark


def test_every_benchmark_of_the_chapter_runs_at_its_small_size():
    from roofline.benchmarks.compiling import BENCHMARKS
    from roofline.support import runner

    (*_, outcome) = runner.measure(BENCHMARKS, quick=True, count=False, budget=0.001)
    assert not outcome.failures
    assert {m.id for m in outcome.record.measurements} == {b.id for b in BENCHMARKS}
