"""The kernels for long, and many at once: what a test of one call cannot show.

Needs a GPU. A few seconds for each kernel by default and the same cases every time; with
BOOK_WHOLE=1 some minutes and new ones. What fails says its seed: BOOK_SEED=… repeats it.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import sanitize
import test_attention
import test_attention_backward
import test_attention_fp8
import test_attention_hopper
import test_matmul
import test_rope_rms_norm
import test_softmax
from kernel_checks import (
    HAS_CUDA,
    assert_no_growth,
    assert_repeatable,
    bits,
    torch,
)
from roofline.attention import attention
from roofline.attention_fp8 import attention_fp8
from roofline.attention_hopper import attention_hopper
from roofline.matmul import matmul
from roofline.rope_rms_norm import LAYOUTS, VARIANTS, rms_norm, rope, rope_rms_norm
from roofline.softmax import softmax

pytestmark = [
    pytest.mark.skipif(not HAS_CUDA, reason="load on a GPU needs an NVIDIA GPU"),
    pytest.mark.timeout(1800),
]
DEVICE = "cuda"
WHOLE = bool(os.environ.get("BOOK_WHOLE"))
SEED = int(os.environ.get("BOOK_SEED") or (random.SystemRandom().getrandbits(32) if WHOLE else 0))
#: For how long random cases follow each other, and how often new kernels are compiled for them.
SECONDS, KINDS = (120.0, 40) if WHOLE else (3.0, 3)
LAUNCHES = 10_000
HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32)


class Draw(random.Random):
    """Random tensors, too; large ones are made where they are used."""

    def normal(self, *shape, dtype=torch.bfloat16, scale=1.0):
        generator = torch.Generator(DEVICE).manual_seed(self.getrandbits(32))
        wide = torch.randn(shape, generator=generator, device=DEVICE, dtype=torch.float32)
        return (wide * scale).to(dtype)

    def size(self, most: int) -> int:
        """Small ones are as likely as large ones."""
        return max(1, round(math.exp(self.uniform(0, math.log(most)))))


# --- random cases: what is compiled for is drawn once, the rest for each case ---------------


def softmax_cases(draw: Draw):
    dtype, width = draw.choice(FLOATS), 2 ** draw.randint(1, 18)

    def case():
        cols = draw.randint(width // 2 + 1, width)
        rows = draw.size(max(1, 2**21 // cols))
        x = draw.normal(rows, cols, dtype=dtype, scale=draw.choice([0.0, 1.0, 30.0, 1e4]))
        test_softmax.check(x, -1)
        return lambda: (softmax(x),)

    return case


def matmul_cases(draw: Draw):
    dtype, most = draw.choice(FLOATS), draw.choice([64, 400, 2000])

    def case():
        m, n, k = (draw.size(most) for _ in range(3))
        if draw.random() < 0.5:  # what the copy engine can describe
            n, k = 8 * math.ceil(n / 8), 8 * math.ceil(k / 8)
        a, b = draw.normal(m, k, dtype=dtype), draw.normal(k, n, dtype=dtype)
        test_matmul.check(a, b)
        return lambda: (matmul(a, b),)

    return case


def attention_inputs(draw: Draw, dtype, dim: int, longest: int):
    group, kv_heads = draw.choice([(1, 1), (3, 1), (1, 2), (4, 2)])
    sq, sk, batch = draw.size(longest), draw.size(longest), draw.randint(1, 2)
    q = draw.normal(batch, kv_heads * group, sq, dim, dtype=dtype)
    return q, *(draw.normal(batch, kv_heads, sk, dim, dtype=dtype) for _ in "kv")


def attention_cases(draw: Draw):
    dtype, dim, causal = draw.choice(FLOATS), draw.choice([17, 64, 96, 128]), draw.random() < 0.5

    def case():
        inputs = attention_inputs(draw, dtype, dim, 2000)
        test_attention.check(inputs, causal=causal)
        return lambda: attention(*inputs, causal=causal, return_lse=True)

    return case


def backward_cases(draw: Draw):
    dtype, dim, causal = draw.choice(HALVES), draw.choice([17, 64, 128]), draw.random() < 0.5

    def case():
        inputs = attention_inputs(draw, dtype, dim, 1000)
        do = draw.normal(*inputs[0].shape, dtype=dtype)

        def run():
            return test_attention_backward.gradients(inputs, do, causal=causal)

        test_attention_backward.judge(run(), *inputs, do, causal=causal)
        return run

    return case


def hopper_cases(draw: Draw):
    dtype, dim, causal = draw.choice(HALVES), draw.choice([48, 64, 96, 128]), draw.random() < 0.5

    def case():
        q, k, v = attention_inputs(draw, dtype, dim, 2000)
        if causal:  # each query must see a key
            q = q[:, :, : k.shape[2]]
        out, lse = attention_hopper(q, k, v, causal=causal, return_lse=True)
        test_attention.judge(out, lse, q, k, v, causal=causal)
        return lambda: attention_hopper(q, k, v, causal=causal, return_lse=True)

    return case


def fp8_cases(draw: Draw):
    dtype, dim, causal = draw.choice(HALVES), draw.choice([48, 64, 96, 128]), draw.random() < 0.5

    def case():
        q, k, v = attention_inputs(draw, dtype, dim, 2000)
        if causal:  # each query must see a key
            q = q[:, :, : k.shape[2]]
        out, lse = attention_fp8(q, k, v, causal=causal, return_lse=True)
        test_attention_fp8.judge(out, lse, q, k, v, causal=causal)
        return lambda: attention_fp8(q, k, v, causal=causal, return_lse=True)

    return case


def norm_cases(draw: Draw):
    dtype, variant, width = draw.choice(FLOATS), draw.choice(VARIANTS), 2 ** draw.randint(4, 16)

    def case():
        cols = draw.randint(width // 2 + 1, width)
        x = draw.normal(draw.size(2**20 // cols), cols, dtype=dtype, scale=draw.choice([1e-3, 1, 50]))
        weight = draw.normal(cols, dtype=dtype)
        test_rope_rms_norm.check_norm(x, None, weight, None, variant)
        return lambda: (rms_norm(x, weight, variant=variant),)

    return case


def rotations(draw: Draw, dtype, dim: int):
    seq = draw.size(2000)
    q, k = (draw.normal(seq, draw.randint(1, heads), dim, dtype=dtype) for heads in (33, 8))
    return q, k, torch.arange(seq, device=DEVICE) + draw.randint(0, 100_000)


def rope_cases(draw: Draw):
    dtype, dim, layout = draw.choice(FLOATS), draw.choice([40, 64, 128]), draw.choice(LAYOUTS)

    def case():
        x, _, where = rotations(draw, dtype, dim)
        y = rope(x, where, layout=layout)
        want = test_rope_rms_norm.rotated(x, where, layout=layout)
        test_rope_rms_norm.judge(y, want, x)
        return lambda: (rope(x, where, layout=layout),)

    return case


def fused_cases(draw: Draw):
    dtype, dim, layout = draw.choice(FLOATS), draw.choice([40, 64, 128]), draw.choice(LAYOUTS)

    def case():
        q, k, where = rotations(draw, dtype, dim)
        gains = [draw.normal(dim, dtype=dtype) for _ in "qk"]

        def run():
            return rope_rms_norm(q, k, *gains, where, layout=layout)

        for x, gain, y in zip((q, k), gains, run(), strict=True):
            plain = test_rope_rms_norm.normed(x, gain, None, "torch")
            test_rope_rms_norm.judge(y, test_rope_rms_norm.rotated(plain, where, layout=layout), x)
        return run

    return case


CASES = {
    "softmax": softmax_cases,
    "matmul": matmul_cases,
    "attention": attention_cases,
    "attention_backward": backward_cases,
    "attention_hopper": hopper_cases,
    "attention_fp8": fp8_cases,
    "rms_norm": norm_cases,
    "rope": rope_cases,
    "rope_rms_norm": fused_cases,
}


def named(name: str):
    marks = [test_attention_hopper.on_hopper] if name in ("attention_hopper", "attention_fp8") else []
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [named(name) for name in CASES])
def test_random_cases_are_right_and_the_same_each_time(name):
    draw = Draw(f"{SEED} {name}")
    kinds, done = [], 0
    until = time.monotonic() + SECONDS
    while done < 2 * KINDS or time.monotonic() < until:
        state = draw.getstate()
        try:
            if done < KINDS:
                kinds.append(CASES[name](draw))
            assert_repeatable(kinds[done % len(kinds)](), times=2)
        except BaseException as error:
            error.add_note(f"BOOK_SEED={SEED}, case {done} of {name} ({hash(state):x})")
            raise
        done += 1
    print(f"{name}: {done} random cases of {len(kinds)} kinds, BOOK_SEED={SEED}")


def calls(draw: Draw) -> dict:
    """A small call of each, which takes the GPU less time than the CPU needs to ask for it."""
    a, b = draw.normal(64, 64), draw.normal(64, 64)
    x, long = draw.normal(8, 1000), draw.normal(4, 65536)
    q, k, v, do = (draw.normal(1, 2, 64, 64) for _ in range(4))
    heads, where = draw.normal(16, 4, 64), torch.arange(16, device=DEVICE)
    deep = draw.normal(16, 16384), draw.normal(16384, 256)
    return {
        "softmax": lambda: (softmax(x),),
        "softmax, a row by a team": lambda: (softmax(long),),
        "matmul": lambda: (matmul(a, b),),
        "matmul, k in parts": lambda: (matmul(*deep),),
        "attention": lambda: attention(q, k, v, causal=True, return_lse=True),
        "attention_backward": lambda: test_attention_backward.gradients((q, k, v), do, causal=True),
        "rms_norm": lambda: (rms_norm(x),),
        "rope": lambda: (rope(heads, where),),
        "rope_rms_norm": lambda: rope_rms_norm(heads, heads, None, None, where),
    }


NAMES = [
    "softmax", "softmax, a row by a team", "matmul", "matmul, k in parts", "attention",
    "attention_backward", "rms_norm", "rope", "rope_rms_norm",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_ten_thousand_launches_keep_no_memory(name):
    run = calls(Draw(SEED))[name]
    assert_no_growth(run, launches=LAUNCHES, bytes_a_launch=800)


def alone_and_again(results, wanted) -> bool:
    return all(torch.equal(bits(y), bits(w)) for y, w in zip(results, wanted, strict=True))


def test_all_kernels_at_once_on_streams_of_their_own():
    jobs = {(i, name): run for i in range(2) for name, run in calls(Draw(SEED + i)).items()}
    assert {name for _, name in jobs} == set(NAMES)
    wanted = {job: run() for job, run in jobs.items()}
    torch.cuda.synchronize()
    streams = {job: torch.cuda.Stream() for job in jobs}
    results = []
    for _ in range(100 if WHOLE else 20):
        for job, run in jobs.items():
            with torch.cuda.stream(streams[job]):
                results.append((job, run()))
    torch.cuda.synchronize()
    for n, (job, got) in enumerate(results):
        assert alone_and_again(got, wanted[job]), (n, job)


def test_threads_that_launch_at_the_same_time():
    jobs = list(calls(Draw(SEED)).items())
    wanted = {name: run() for name, run in jobs}
    torch.cuda.synchronize()

    def work(seed: int) -> list[str]:
        wrong, order = [], random.Random(seed)
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(500 if WHOLE else 50):
                name, run = order.choice(jobs)
                got = run()
                torch.cuda.current_stream().synchronize()
                wrong += [] if alone_and_again(got, wanted[name]) else [name]
        return wrong

    with ThreadPoolExecutor(4) as threads:
        assert not [name for found in threads.map(work, range(4)) for name in found]


@pytest.mark.skipif(not WHOLE, reason="compute-sanitizer takes minutes: BOOK_WHOLE=1 asks for it")
@pytest.mark.skipif(not shutil.which(sanitize.TOOL), reason=f"needs {sanitize.TOOL}")
@pytest.mark.parametrize("name", sanitize.KERNELS)
def test_nothing_is_read_or_written_beside_a_tensor(name):
    done = sanitize.run_checked(name)
    assert done.returncode == 0, done.stdout + done.stderr
