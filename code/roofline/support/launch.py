"""Launch a Triton kernel on the tensors it is given, wherever they are.

On CUDA tensors this is ``kernel[grid](*args, **meta)``. On CPU tensors the same
kernel runs in Triton's interpreter, which executes one program of the grid after
another with NumPy. Triton's own switch for that, the environment variable
TRITON_INTERPRET, is read while ``@triton.jit`` decorates and then holds for the whole
process; here the tensors decide, launch by launch, and a GPU launch stays untouched.

Importing this module imports neither torch nor triton.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
import warnings
import weakref

__all__ = ["hidden_from_dynamo", "launch"]

# Options of a launch that are not parameters of the kernel: they shape machine code,
# of which the interpreter makes none.
LAUNCH_OPTIONS = frozenset(
    "num_warps num_stages num_ctas maxnreg launch_cooperative_grid launch_pdl "
    "enable_fp_fusion debug".split()
)

# The interpreter keeps the index of the running program in one global and patches
# triton.language while it runs, so two threads must take turns.
_turn = threading.RLock()
_hidden = {}
_rewritten = weakref.WeakKeyDictionary()


def launch(kernel, grid, *args, **meta):
    """Run ``kernel`` once for every program of ``grid``.

    kernel: a function decorated with ``@triton.jit``, whose helpers may be too.
    grid: tuple of one to three ints, or a function from the arguments to one.
    args, meta: arguments of the kernel by position and by name; ``meta`` also takes
        launch options (num_warps, num_stages, launch_cooperative_grid ...), which
        have no meaning on a CPU and are ignored there.
    Returns the compiled kernel on a GPU, None on a CPU.
    Raises ValueError if the tensors are not all on one device, or on one of a kind
    that no kernel can run on; TypeError for an argument the kernel does not have.
    """
    return hidden_from_dynamo(_launch)(kernel, grid, args, meta)


def hidden_from_dynamo(function):
    """torch.compile must call a launch, or what launches, as it is, not trace into it.

    It cannot trace the interpreter, and on a GPU it drops launch options that it does
    not know, launch_cooperative_grid among them: programs that wait for each other
    would then wait for ever.
    """
    dynamo = sys.modules.get("torch._dynamo")  # where it is not loaded, nobody traces
    if dynamo is None:
        return function
    if function not in _hidden:  # making the wrapper takes longer than a launch may
        _hidden[function] = dynamo.disable(function)
    return _hidden[function]


def _launch(kernel, grid, args, meta):
    devices = {d for d in map(_device, (*args, *meta.values())) if d is not None}
    if len(devices) != 1:
        names = ", ".join(sorted(map(str, devices))) or "none"
        raise ValueError(f"launch: tensors are on {names}; one common device is needed")
    (device,) = devices
    if device.type == "cuda":
        with _current(device):
            return kernel[grid](*args, **meta)
    if device.type == "cpu":
        return _interpret(kernel, grid, args, meta)
    raise ValueError(f"launch: tensors are on {device}; cuda or cpu is needed")


def _device(value):
    value = getattr(value, "base", None) if hasattr(value, "block_shape") else value
    return getattr(value, "device", None)


def _current(device):
    """Triton launches on the current device: make it the one of the tensors."""
    import torch

    if device.index is None or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)


def _interpret(kernel, grid, args, meta):
    # The compiler copies functions of the language when it is first imported. That must
    # not happen while the interpreter has patched them, or no kernel compiles any more.
    import numpy as np
    import triton.compiler.code_generator  # noqa: F401
    from triton.runtime import interpreter
    from triton.runtime.jit import JITFunction

    if isinstance(kernel, interpreter.InterpretedFunction):  # TRITON_INTERPRET was set
        return kernel[grid](*args, **meta)
    if not isinstance(kernel, JITFunction):
        raise TypeError(f"launch: kernel is {kernel!r}; need a @triton.jit function")
    unknown = meta.keys() - set(kernel.arg_names) - LAUNCH_OPTIONS
    if unknown:
        raise TypeError(
            f"launch: {kernel.fn.__name__} has no parameter {sorted(unknown)[0]!r}; "
            f"it has {', '.join(kernel.arg_names)}"
        )
    meta = {name: value for name, value in meta.items() if name in kernel.arg_names}
    with (
        _turn,
        _device_functions_callable(interpreter),
        # inf - inf is NaN on a GPU, without a word; NumPy would warn.
        np.errstate(all="ignore"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", RuntimeWarning)
        grid = grid if callable(grid) else tuple(grid)
        function = _rewrite(kernel, interpreter)
        interpreter.GridExecutor(function, kernel.arg_names, grid)(*args, **meta)


def _rewrite(kernel, interpreter):
    """The kernel as a Python function that the interpreter can run.

    The rewritten function gets a copy of the kernel's globals, because the interpreter
    adds some of its own; the copy is refreshed at every launch, since a kernel may be
    defined before the helper or constant that it uses.
    """
    import triton.language as tl

    fn = kernel.fn  # and the key: hashing the kernel itself would compile its source
    if fn not in _rewritten:
        copy = types.FunctionType(
            fn.__code__,
            dict(fn.__globals__),
            fn.__name__,
            fn.__defaults__,
            fn.__closure__,
        )
        copy.__kwdefaults__ = fn.__kwdefaults__
        copy.__annotations__ = dict(fn.__annotations__)
        copy.__module__ = fn.__module__
        _rewritten[fn] = interpreter.FunctionRewriter(copy).rewrite_ast()
    function = _rewritten[fn]
    # The interpreter patches the language modules it sees among these globals. tl.max
    # and its like are written in terms of tl.core, so both must be there.
    function.__globals__.update(fn.__globals__, __tl=tl, __tl_core=tl.core)
    return function


@contextlib.contextmanager
def _device_functions_callable(interpreter):
    """Let interpreted code call other @triton.jit functions, tl.max and tl.sum too.

    Outside a kernel such a call raises, and that is all it does, so for the length of
    one interpreted launch it may mean something else.
    """
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    def call(self, *args, **kwargs):
        return _rewrite(self, interpreter)(*args, **kwargs)

    def patch_language(fn, _original=interpreter._patch_lang):
        scope = _original(fn)
        # triton 3.6 makes an int of an array of one element, which NumPy 2.4 refuses.
        scope.set_attr(tl.tensor, "__index__", lambda t: int(t.handle.data.item()))
        return scope

    saved = JITFunction.__call__, interpreter._patch_lang
    JITFunction.__call__, interpreter._patch_lang = call, patch_language
    try:
        yield
    finally:
        JITFunction.__call__, interpreter._patch_lang = saved
