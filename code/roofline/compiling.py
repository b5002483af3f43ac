# Tangled from chapters/06_torch_compile_deep_dive.md: edit it there, then run `make tangle`.
# Content hash: 30198f1056f01034

"""What torch.compile makes of a function, what it costs, and what it gains.

`graph_breaks`, `recompiles`, `graphs` and `kernels` answer one question each about any
function or module; `compare` times it before and after. `rms_norm_op` is a kernel of
this book as an operation that torch.compile does not break at.
"""

from __future__ import annotations

import contextlib
import linecache
import logging
import math
import os
import re
import statistics
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo
from torch.utils import _pytree as pytree

from roofline.rope_rms_norm import EPS, rms_norm


@dataclass(frozen=True)
class Break:
    """A place where TorchDynamo could not follow a function.

    reason       what it stumbled over, in Dynamo's words
    explanation  more of them
    hints        what Dynamo advises
    file, line   the innermost line of the user's own code that led there
    code         that line
    abandoned    True if the whole function was given up and runs as plain Python
    """

    reason: str
    explanation: str
    hints: tuple[str, ...]
    file: str
    line: int
    code: str
    abandoned: bool

    def __str__(self) -> str:
        given_up = " (nothing compiled)" if self.abandoned else ""
        where = f"{os.path.basename(self.file)}:{self.line}"
        return f"{where}: {self.reason}{given_up}: {self.code}"


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@contextlib.contextmanager
def _listening() -> Iterator[list[str]]:
    """What Dynamo tells the log of graph breaks while the body runs."""
    listener = _Listener()
    names = [f"torch._dynamo.{part}" for part in ("symbolic_convert", "convert_frame")]
    logs = [torch._logging.getArtifactLogger(name, "graph_breaks") for name in names]
    before = [(log.level, log.propagate) for log in logs]
    for log in logs:
        log.setLevel(logging.DEBUG)
        log.propagate = False  # it is ours to read, not to print
        log.addHandler(listener)
    try:
        yield listener.said
    finally:
        for log, (level, propagate) in zip(logs, before, strict=True):
            log.removeHandler(listener)
            log.setLevel(level)
            log.propagate = propagate


_FRAME = re.compile(r'^  File "(.+)", line (\d+), in ', re.MULTILINE)
_TORCH = os.path.dirname(torch.__file__)
_LIBRARIES = tuple(sysconfig.get_paths()[kind] for kind in ("stdlib", "purelib"))


def graph_breaks(fn: Callable, /, *args: Any, **kwargs: Any) -> list[Break]:
    """Every graph break that one call of `fn` meets, in order.

    fn            a function or module, compiled already or not
    args, kwargs  what to call it with; it runs once, and may change them
    Returns an empty list if all of `fn` became one graph. What `fn` raises is raised.
    Raises TypeError for an `fn` that cannot be called, ValueError for one that
    `torch.compiler.disable` hides. Like `torch._dynamo.explain` it makes torch forget
    what it has compiled, and, unlike it, also finds the functions that were abandoned.
    """
    plain = _uncompiled(fn)
    torch._dynamo.reset()
    try:
        with _listening() as said, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Dynamo does not know how to trace")
            torch.compile(plain, backend="eager")(*args, **kwargs)
    finally:
        torch._dynamo.reset()
    return list(dict.fromkeys(_breaks(said)))  # each once


def _uncompiled(fn: Callable) -> Callable:
    """The function or module below torch.compile's wrappers."""
    if not callable(fn):
        raise TypeError(f"fn must be a function or a module, got {fn!r}")
    while True:
        inner = getattr(fn, "_orig_mod", None)
        if inner is None and not getattr(fn, "_torchdynamo_disable", False):
            inner = getattr(fn, "_torchdynamo_orig_callable", None)
        if inner is None:
            break
        fn = inner
    if getattr(fn, "_torchdynamo_disable", False):
        raise ValueError(f"fn is hidden by torch.compiler.disable, got {fn!r}")
    return fn


def _breaks(said: list[str]) -> Iterator[Break]:
    """A break inside a function that was called is told again when that is compiled."""
    places = [text.partition("\n")[0].rpartition(" at ")[2] for text in said]
    given_up = {
        place for place, text in zip(places, said) if "Skipping the function" in text
    }
    for place, text in zip(places, said, strict=True):
        if "User code traceback:" in text:
            yield _break(text, abandoned=place in given_up)


def _break(text: str, abandoned: bool) -> Break:
    told, _, stack = text.partition("User code traceback:")
    told = told.partition("Graph Break Reason:")[2]
    lines = [line for line in told.strip().splitlines() if line.strip()]
    while len(lines) > 1 and lines[0].rstrip().endswith(":"):  # 'when tracing CALL:'
        del lines[0]
    hints = [line.removeprefix("  Hint: ") for line in lines if "  Hint: " in line]
    told_why = [line for line in lines if line.startswith("  Explanation: ")]
    file, line = _own_frame(_FRAME.findall(stack))
    return Break(
        reason=lines[0].strip() if lines else "no reason given",
        explanation=told_why[0].removeprefix("  Explanation: ") if told_why else "",
        hints=tuple(hints),
        file=file,
        line=line,
        code=linecache.getline(file, line).strip(),
        abandoned=abandoned,
    )


def _own_frame(frames: list[tuple[str, str]]) -> tuple[str, int]:
    """The innermost frame that is the user's; else the innermost that is not torch's."""
    files = [file for file, _ in frames]
    if __file__ in files:  # what stands above is who called us
        frames = frames[len(files) - files[::-1].index(__file__) :]
    outside = [f for f in frames if not f[0].startswith((_TORCH, "<"))]
    own = [f for f in outside if not f[0].startswith(_LIBRARIES)]
    for found in (own, outside, frames):
        if found:
            return found[-1][0], int(found[-1][1])
    return "<unknown>", 0


@dataclass(frozen=True)
class Recompile:
    """A function was compiled although a version of it was there.

    file, line  where the function is defined
    reason      the guard that failed, in Dynamo's words
    gave_up     True if the limit was reached: the function stays plain Python
    """

    function: str
    file: str
    line: int
    reason: str
    gave_up: bool


@contextlib.contextmanager
def recompiles() -> Iterator[list[Recompile]]:
    """Note what is compiled again: `with recompiles() as seen: …`, then read `seen`.

    The list is filled when the block ends, by an exception or not. A function's first
    compilation is none; after a graph break each piece counts for itself.
    """
    metrics = torch._dynamo.utils
    metrics.set_compilation_metrics_limit(1000)  # how many torch remembers
    before = metrics.get_compilation_metrics()
    seen: list[Recompile] = []
    try:
        yield seen
    finally:
        known = {id(metric) for metric in before}
        names: dict[str, tuple[str, str, int]] = {}
        for metric in metrics.get_compilation_metrics():
            frame = str(metric.compile_id).partition("/")[0]
            if metric.co_name:
                where = (metric.co_name, metric.co_filename, metric.co_firstlineno)
                names[frame] = where
            if id(metric) not in known and metric.recompile_reason:
                name, file, line = names.get(frame, ("<unknown>", "<unknown>", 0))
                gave_up = metric.fail_type is not None and not metric.co_name
                why = metric.recompile_reason
                seen.append(Recompile(name, file, line, why, gave_up))


@dataclass(frozen=True)
class Graphs:
    """What AOTAutograd makes of one graph.

    forward, backward  FX graphs of basic operations; backward is None without gradient
    saved              bytes of each tensor that the forward keeps for the backward
    """

    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule | None = None
    saved: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def operations(graph: torch.fx.GraphModule | None) -> tuple[str, ...]:
        """Names of the basic operations of a graph, in order."""
        nodes = graph.graph.nodes if graph is not None else ()
        called = [node.target for node in nodes if node.op == "call_function"]
        return tuple(str(target).removeprefix("aten.") for target in called)


def graphs(
    fn: Callable, /, *args: Any, recompute: bool = True, **kwargs: Any
) -> list[Graphs]:
    """The forward and backward graphs of one call of `fn`, one pair for each piece.

    recompute  whether the cut may have the backward compute things again rather than
               keep them, as it is by default; without, it keeps what it needs
    args, kwargs  what to call `fn` with; it runs once, and a backward pass behind it,
               whose gradients are thrown away. Forgets what torch has compiled.
    """
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch import partitioners

    forward, backward = [], []

    def keep(into: list) -> Callable:
        def compiler(graph: torch.fx.GraphModule, inputs: Any) -> Callable:
            into.append(graph)
            return make_boxed_func(graph.forward)

        return compiler

    cut = partitioners.min_cut_rematerialization_partition
    backend = aot_autograd(
        fw_compiler=keep(forward),
        bw_compiler=keep(backward),
        inference_compiler=keep(forward),
        partition_fn=cut if recompute else partitioners.default_partition,
    )
    torch._dynamo.reset()
    try:
        with warnings.catch_warnings():  # Dynamo looks at .grad of what passes a break
            warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor")
            result = torch.compile(_uncompiled(fn), backend=backend)(*args, **kwargs)
        outputs = [leaf for leaf in _tensors(result) if leaf.requires_grad]
        if outputs:
            ends = [torch.ones_like(output) for output in outputs]
            torch.autograd.grad(outputs, _leaves(outputs), ends, allow_unused=True)
    finally:
        torch._dynamo.reset()
    # The pieces run forward in order and backward in the opposite one.
    with_gradient = iter(reversed(backward))
    pairs = []
    for graph in forward:
        keeps = len(backward) == len(forward)
        back = next(with_gradient, None) if keeps else None
        pairs.append(Graphs(graph, back, _saved(back)))
    return pairs


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _leaves(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that gradients of these outputs would be added to."""
    leaves = [x for x in outputs if x.grad_fn is None]
    todo, seen = [x.grad_fn for x in outputs if x.grad_fn is not None], set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        todo += [before for before, _ in node.next_functions if before is not None]
    return leaves


def _saved(backward: torch.fx.GraphModule | None) -> dict[str, int]:
    nodes = backward.graph.nodes if backward is not None else ()
    kept = {}
    for node in nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and "tangents" not in node.name:
            kept[node.name] = value.nbytes if isinstance(value, torch.Tensor) else 0
    return kept


@dataclass(frozen=True)
class Kernel:
    """A kernel that Inductor plans.

    operations     names of the basic operations in it ("exp", "sum", …), sorted
    reads, writes  bytes that it must read and write at least, each buffer once
    library        True if it is a call of a library, such as a matrix product
    """

    operations: tuple[str, ...]
    reads: int
    writes: int
    library: bool

    @property
    def bytes(self) -> int:
        return self.reads + self.writes


class _Planned(Exception):
    """Raised to leave Inductor once it has told its plan."""


def kernels(fn: Callable, /, *args: Any, **kwargs: Any) -> list[Kernel]:
    """The kernels that Inductor plans for one call of `fn`, without gradient.

    `fn` runs once, as plain operations; no code is generated. The bytes are what
    Inductor reckons for a kernel that touches each buffer once: compare them with the
    counts of `roofline.model`. Forgets what torch has compiled.
    """
    from torch._functorch import config as autograd_config
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    plan: list[Kernel] = []

    def look(nodes: list) -> None:
        plan.extend(_planned(nodes))
        raise _Planned

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Callable:
        with (
            autograd_config.patch(enable_autograd_cache=False),
            config.patch(_post_fusion_custom_pass=look, fx_graph_cache=False),
        ):
            try:
                compile_fx(graph, inputs)
            except Exception as error:
                if not _caused_by_plan(error):
                    raise
        return graph.forward

    torch._dynamo.reset()
    try:
        with torch.no_grad():
            torch.compile(_uncompiled(fn), backend=backend)(*args, **kwargs)
    finally:
        torch._dynamo.reset()
    return plan


def _planned(nodes: list) -> Iterator[Kernel]:
    # Nodes of a graph are ordered: the last that a call was made of is the call itself.
    called = {n: max(_origins(n), default=None) for n in nodes if n.is_extern()}
    for node in nodes:
        reads, writes = node.get_read_buffer_sizes(), node.get_write_buffer_sizes()
        if reads + writes == 0:  # a name for another's result
            continue
        # Origins are the graph's operations that a buffer goes back to. They include the
        # calls that it was written for, and those of a call what its operands were
        # made of.
        library = node in called
        made_of = {called[node]} if library else _origins(node) - {*called.values()}
        names = (str(operation.target) for operation in made_of if operation)
        operations = {name.split(".")[1] for name in names if "." in name}
        yield Kernel(tuple(sorted(operations)), reads, writes, library)


def _origins(node: Any) -> set[torch.fx.Node]:
    parts = node.get_nodes()
    return {op for part in parts for op in getattr(part.node, "origins", None) or ()}


def _caused_by_plan(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, _Planned):
        error = error.__cause__ or error.__context__
    return error is not None


@torch.library.custom_op(
    "roofline::rms_norm",
    mutates_args=(),
    schema="(Tensor x, Tensor weight, float eps) -> Tensor",
)
def rms_norm_op(x, weight, eps=EPS):
    """`roofline.rms_norm` as an operation that torch.compile calls whole.

    x       (..., columns), fp16, bf16 or fp32
    weight  (columns,), dtype and device of x
    eps     above 0, added to the mean square
    Returns a contiguous tensor of x's shape and dtype. Has a gradient in x and weight.
    Raises what `rms_norm` raises. Zhang & Sennrich 2019; chapter 6, 'Our own kernels'.
    """
    return rms_norm(x, weight, eps=eps)


@rms_norm_op.register_fake
def _rms_norm_fake(x, weight, eps=EPS):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _rms_norm_setup(ctx, inputs, output):
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _rms_norm_backward(ctx, upstream):
    """Chapter 5's formula in plain operations: compiled, they become one kernel too."""
    x, weight = (tensor.float() for tensor in ctx.saved_tensors)
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + ctx.eps)
    unit = x * scale
    v = upstream.float() * weight
    dx = scale * (v - unit * (v * unit).mean(-1, keepdim=True))
    dw = (upstream.float() * unit).reshape(-1, x.shape[-1]).sum(0)
    dtypes = (tensor.dtype for tensor in ctx.saved_tensors)
    return dx.to(next(dtypes)), dw.to(next(dtypes)), None


rms_norm_op.register_autograd(_rms_norm_backward, setup_context=_rms_norm_setup)


TOLERANCE = {
    torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3,
    torch.bfloat16: 3e-2,
}


class Disagreement(AssertionError):
    """A compiled function gives something else than the function itself."""


@dataclass(frozen=True)
class Comparison:
    """A function before and after torch.compile; times in seconds.

    cold    the first call, with empty caches, on disk and in memory
    warm    a first call again, with what `cold` left on disk
    steady  one call of many; eager: one call of many of the function itself
    error   the largest error of an output, as a fraction of its norm
    """

    cold: float
    warm: float
    steady: float
    eager: float
    error: float

    @property
    def speedup(self) -> float:
        return self.eager / self.steady

    @property
    def pays_after(self) -> float:
        """Calls after which a cold start has paid; infinite if it never does."""
        saved = self.eager - self.steady
        return (self.cold - self.eager) / saved if saved > 0 else math.inf


@contextlib.contextmanager
def caches_in(folder: str) -> Iterator[None]:
    """Let torch.compile keep its files in `folder`, and nothing in memory."""
    from torch._inductor.utils import clear_caches

    wanted = {
        "TORCHINDUCTOR_CACHE_DIR": folder,
        "TRITON_CACHE_DIR": os.path.join(folder, "triton"),
    }
    before = {name: os.environ.get(name) for name in wanted}

    def forget() -> None:
        torch._dynamo.reset()
        clear_caches()

    os.environ.update(wanted)
    forget()
    try:
        yield
    finally:
        forget()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def compare(
    fn: Callable,
    args: tuple = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    tolerance: float | None = None,
    **options: Any,
) -> Comparison:
    """Compile `fn`, check that it still gives the same, and time all there is to time.

    args, kwargs  what to call it with; it gets copies, so it may change them
    tolerance     largest norm of an output's error over the norm of the output;
                  None means 1e-12, 1e-5, 5e-3, 3e-2 for fp64, fp32, fp16, bf16
    options       of torch.compile: mode, backend, dynamic, fullgraph, …
    Raises Disagreement, which names the output and the size of its error, TypeError
    for args that are no tuple, ValueError for a tolerance below 0, and what `fn` and
    torch.compile raise. Forgets what torch has compiled. On a GPU a call ends when
    the device is done; calls that are timed by the many are not waited for one by one.
    """
    if not isinstance(args, tuple):
        raise TypeError(f"args must be a tuple, got {type(args).__name__}: (x,) is one")
    if tolerance is not None and not tolerance >= 0:
        raise ValueError(f"tolerance must be 0 or above, got {tolerance}")
    plain, kwargs = _uncompiled(fn), dict(kwargs or {})
    given = _copied((args, kwargs))

    def called(function: Callable) -> tuple[Any, Any]:
        """The result, and what became of the inputs."""
        args, kwargs = _copied(given)
        result = function(*args, **kwargs)
        _wait()
        return result, (args, kwargs)

    def first() -> tuple[float, Any, Callable]:
        torch._dynamo.reset()
        compiled = torch.compile(plain, **options)
        args, kwargs = _copied(given)
        start = time.perf_counter()
        result = compiled(*args, **kwargs)
        _wait()
        return time.perf_counter() - start, (result, (args, kwargs)), compiled

    right = called(plain)
    device = next((x.device for x in _tensors(given)), torch.device("cpu"))
    # What the compiler must import is not the function's time.
    torch.compile(lambda x: x + 1, **options)(torch.ones(2, device=device))
    with tempfile.TemporaryDirectory(prefix="compare-") as folder, caches_in(folder):
        cold, output, _ = first()
        error = _disagreement(output, right, tolerance)
        torch._inductor.utils.clear_caches()
        warm, output, compiled = first()
        error = max(error, _disagreement(output, right, tolerance))
        args, kwargs = _copied(given)
        steady, eager = _alternating(
            lambda: compiled(*args, **kwargs), lambda: plain(*args, **kwargs)
        )
    return Comparison(cold, warm, steady, eager, error)


def _copied(tree: Any) -> Any:
    def copy(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return x.detach().clone().requires_grad_(x.requires_grad)

    return pytree.tree_map(copy, tree)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _disagreement(got: Any, right: Any, tolerance: float | None) -> float:
    """The largest relative error of (result, inputs); a Disagreement if too large."""
    if pytree.tree_structure(got) != pytree.tree_structure(right):
        raise Disagreement("the compiled function returns another structure")
    worst = 0.0
    paths = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(right)[0]]
    leaves = zip(paths, *map(pytree.tree_leaves, (got, right)), strict=True)
    for path, ours, reference in leaves:
        what = "result" if path.startswith("[0]") else "input, changed in place,"
        if not isinstance(reference, torch.Tensor):
            if isinstance(reference, (int, float, str)) and ours != reference:
                raise Disagreement(f"{what} {path[3:]} is {ours!r}, not {reference!r}")
            continue
        if (ours.shape, ours.dtype) != (reference.shape, reference.dtype):
            raise Disagreement(
                f"{what} {path[3:]} has shape {tuple(ours.shape)} and {ours.dtype}, "
                f"not {tuple(reference.shape)} and {reference.dtype}"
            )
        allowed = tolerance
        if allowed is None:
            allowed = TOLERANCE.get(reference.dtype, 0.0)
        error = _relative_error(ours.detach(), reference.detach())
        if not error <= allowed:
            raise Disagreement(
                f"{what} {path[3:]} is off by {error:.1e} of its norm, "
                f"more than {allowed:g}"
            )
        worst = max(worst, error)
    return worst


def _relative_error(ours: torch.Tensor, reference: torch.Tensor) -> float:
    wide = torch.complex128 if reference.is_complex() else torch.float64
    ours, reference = ours.to(wide), reference.to(wide)
    same = (ours == reference) | (ours.isnan() & reference.isnan())
    off = torch.where(same, 0, ours - reference).norm()
    size = torch.where(reference.isfinite(), reference, 0).norm()
    if off == 0:
        return 0.0
    return float(off / size) if off.isfinite() and size > 0 else math.inf


def _alternating(*calls: Callable, rounds: int = 5, enough: float = 0.02) -> list[float]:
    """Median seconds of one call of each, timed by the many and in turn."""
    times = []
    for call in calls:
        n, took = 1, 0.0
        while took < enough:
            n, took = 2 * n, _seconds(call, 2 * n)
        times.append(n)
    samples: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for place, (call, n) in enumerate(zip(calls, times, strict=True)):
            samples[place].append(_seconds(call, n) / n)
    return [statistics.median(each) for each in samples]


def _seconds(call: Callable, times: int) -> float:
    _wait()
    start = time.perf_counter()
    for _ in range(times):
        call()
    _wait()
    return time.perf_counter() - start
