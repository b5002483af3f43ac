"""The Triton source that Inductor writes for a GPU that is not here.

    python -m roofline.support.inductor_source      writes data/inductor/

Inductor asks the device for a handful of properties and, until a kernel is compiled,
for nothing else. Here it is told them, works on tensors without numbers, and is stopped
when it has written its code. Private parts of torch are replaced for that, so this is a
tool for the book's data (tried with torch 2.11 and 2.13) and not a part of the package.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

FOLDER = Path(__file__).parents[1] / "data" / "inductor"
H200 = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, warp_size=32,
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048,
    max_threads_per_block=1024, shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448, gcnArchName="",
)  # fmt: skip


def committed(name: str) -> str:
    """The source of a kernel of the book: committed("softmax-8192")."""
    return (FOLDER / f"{name}.txt").read_text("utf-8")


class _Written(Exception):
    def __init__(self, code: str) -> None:
        self.code = code


def _stop(code: str) -> None:
    raise _Written(code)


@contextlib.contextmanager
def _pretending():
    """torch believes in an H200, as far as Inductor asks."""
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor import config
    from torch._inductor.graph import GraphLowering

    def put(owner, name: str, value):
        return mock.patch.object(owner, name, staticmethod(value))

    with contextlib.ExitStack() as stack:
        for owner in (CudaInterface, CudaInterface.Worker):
            stack.enter_context(put(owner, "get_device_properties", lambda device=None: H200))
        stack.enter_context(put(CudaInterface, "is_available", lambda: True))
        stack.enter_context(put(CudaInterface, "current_device", lambda: 0))
        stack.enter_context(put(CudaInterface, "get_compute_capability", lambda device=None: 90))
        stack.enter_context(put(CudaInterface, "is_triton_capable", lambda device=None: True))
        unavailable = "raise_if_triton_unavailable"
        stack.enter_context(put(CudaInterface, unavailable, lambda device=None: None))
        stack.enter_context(put(GraphLowering, "save_output_code", _stop))
        for name, value in {
            "torch.cuda.is_available": lambda: True,
            "torch.cuda.current_device": lambda: 0,
            "torch.cuda.get_device_properties": lambda device=None: H200,
            "torch.cuda.get_device_capability": lambda device=None: (9, 0),
            "torch.cuda._exchange_device": lambda index: 0,
            "torch.cuda._maybe_exchange_device": lambda index: 0,
            "torch.utils._triton.has_triton": lambda: True,
            "torch.utils._triton.triton_hash_with_backend": lambda: "none",
            "torch._subclasses.fake_tensor.init_gpu_context": lambda device: None,
            "torch._dynamo.utils.preserve_rng_state": contextlib.nullcontext,
        }.items():
            stack.enter_context(mock.patch(name, value))
        stack.enter_context(config.patch(fx_graph_cache=False, compile_threads=1))
        yield


def triton_source(fn: Callable, *shapes: tuple[int, ...], dtype: str = "bfloat16") -> str:
    """All of the code that Inductor writes for `fn` of tensors with these shapes."""
    import torch
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with _pretending(), torch.no_grad(), tracing(TracingContext(mode)):
        with mode:
            options = {"device": "cuda", "dtype": getattr(torch, dtype)}
            inputs = [torch.empty(shape, **options) for shape in shapes]
        table = select_decomp_table()
        graph = make_fx(lambda *xs: (fn(*xs),), decomposition_table=table)(*inputs)
        try:
            compile_fx_inner(graph, inputs)
        except Exception as error:
            written = error
            while written is not None and not isinstance(written, _Written):
                written = written.__cause__ or written.__context__
            if written is None:
                raise
            return written.code
    raise RuntimeError("Inductor wrote no code")


def kernels(code: str) -> list[str]:
    """The bodies of the Triton kernels in Inductor's code, from `def` on."""
    found = re.findall(r"@triton\.jit\n(def .*?)\n''', device_str", code, re.DOTALL)
    return [body.rstrip() + "\n" for body in found]


def main() -> None:
    import torch

    def softmax(x):
        return torch.softmax(x, -1)

    def rms_norm(x, weight):
        return torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6)

    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, fn, *shapes in (
        ("softmax-1024", softmax, (32768, 1024)),
        ("softmax-8192", softmax, (4096, 8192)),
        ("rms-norm-8192", rms_norm, (16384, 8192), (8192,)),
    ):
        (body,) = kernels(triton_source(fn, *shapes))
        head = f"# Written by Inductor of torch {torch.__version__} for an NVIDIA H200.\n"
        (FOLDER / f"{name}.txt").write_text(head + body, "utf-8")


if __name__ == "__main__":
    main()
