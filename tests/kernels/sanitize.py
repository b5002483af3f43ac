"""Every kernel under NVIDIA's compute-sanitizer: `python tests/kernels/sanitize.py [NAME ...]`.

The tensors are tiny, with sizes that no tile divides, since what is looked for is a
program that reads or writes beside them. torch's caching allocator is switched off: it
would give a stray access memory that is another tensor's, and nobody would see it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

TOOL = "compute-sanitizer"
#: What it exits with if it found something; nobody else does.
FOUND = 86


def softmax(normal):
    from roofline.softmax import Split, softmax

    softmax(normal(3, 70))
    softmax(normal(2, 5, 33), 1)
    softmax(normal(2, 9000), config=Split(4096, per_sm=1))
    softmax(normal(2, 9000), config=Split(4096, per_sm=0))


def matmul(normal):
    chapter = import_module("roofline.matmul")  # `roofline.matmul` itself is the function

    for m, n, k in ((70, 33, 50), (128, 128, 64), (17, 40, 3000)):
        a, b = normal(m, k), normal(k, n)
        chapter.matmul(a, b)
        for step in ("naive", "tiled", "grouped", "pipelined", "persistent"):
            getattr(chapter, f"matmul_{step}")(a, b)


def attention(normal):
    from roofline.attention import attention

    for dim in (64, 72, 17):
        q, k, v = normal(1, 4, 70, dim), normal(1, 2, 101, dim), normal(1, 2, 101, dim)
        for causal in (False, True):
            attention(q, k, v, causal=causal, return_lse=True)


def attention_backward(normal):
    from roofline.attention import attention

    for dim in (64, 17):
        shapes = (1, 4, 70, dim), (1, 2, 101, dim), (1, 2, 101, dim)
        for causal in (False, True):
            leaves = [normal(*shape).requires_grad_() for shape in shapes]
            attention(*leaves, causal=causal).backward(normal(*shapes[0]))


def attention_hopper(normal):
    from roofline.attention_hopper import GROUPS, attention_hopper, reason_against

    for dim, groups in GROUPS.items():
        for causal in (False, True):
            q, k, v = normal(1, 4, 301, dim), normal(1, 2, 405, dim), normal(1, 2, 405, dim)
            if not reason_against(q, k, v, causal=causal):
                attention_hopper(q, k, v, causal=causal, return_lse=True, groups=groups)


def attention_fp8(normal):
    from roofline.attention_fp8 import attention_quantized, quantize, reason_against_quantized

    for dim in (64, 72, 128):
        for causal in (False, True):
            q, k, v = normal(1, 4, 301, dim), normal(1, 2, 405, dim), normal(1, 2, 405, dim)
            x = quantize(q, k, v)
            if not reason_against_quantized(x, causal=causal):
                attention_quantized(x, causal=causal, return_lse=True)


def rope_rms_norm(normal):
    import torch

    chapter = import_module("roofline.rope_rms_norm")

    x, gain = normal(5, 70), normal(70)
    chapter.rms_norm(x, gain)
    chapter.rms_norm(normal(2, 40_001))
    chapter.add_rms_norm(x, normal(5, 70), gain)
    q, k = normal(7, 5, 80), normal(7, 3, 80)
    where = torch.arange(7, device=q.device)
    for layout in chapter.LAYOUTS:
        chapter.rope_qk(q, k, where, layout=layout)
        chapter.rope_rms_norm(q, k, normal(80), normal(80), where, layout=layout)


KERNELS = {
    run.__name__: run
    for run in (
        softmax, matmul, attention, attention_backward, attention_hopper, attention_fp8,
        rope_rms_norm,
    )
}  # fmt: skip


def run_here(name: str, device: str = "cuda") -> None:
    """Launch the kernels of a chapter on tensors that are made on the CPU."""
    import torch

    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator).to(torch.bfloat16).to(device)

    KERNELS[name](normal)
    if device == "cuda":
        torch.cuda.synchronize()


def run_checked(name: str) -> subprocess.CompletedProcess:
    """The same in a process of its own, under the tool; compiled before that, without it."""
    here = [sys.executable, __file__, "--here", name]
    code = str(Path(__file__).parents[2] / "code")
    path = os.pathsep.join(filter(None, [code, os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run(here, env=environment, check=True)
    environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    tool = [TOOL, "--tool", "memcheck", "--error-exitcode", str(FOUND)]
    return subprocess.run([*tool, *here], env=environment, capture_output=True, text=True)


def main(names: list[str]) -> int:
    if names[:1] == ["--here"]:
        for name in names[1:]:
            run_here(name)
        return 0
    if unknown := set(names) - set(KERNELS):
        print(f"no kernels are called {sorted(unknown)}; there are {sorted(KERNELS)}", file=sys.stderr)
        return 2
    if not shutil.which(TOOL):
        print(f"{TOOL} is not on the path; it comes with the CUDA toolkit", file=sys.stderr)
        return 2
    worst = 0
    for name in names or KERNELS:
        done = run_checked(name)
        print(f"{name}: {'clean' if done.returncode == 0 else f'exit status {done.returncode}'}")
        if done.returncode:
            print(done.stdout[-4000:], done.stderr[-2000:], sep="\n")
        worst = max(worst, done.returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
