# Tangled from chapters/04_triton_flashattention.md: edit it there, then run `make tangle`.
# Content hash: 975222bdf17a4fec

"""Attention, forward: lengths, head dimensions, and the steps on the way."""

from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from roofline.attention import Config, attention, attention_unfused
from roofline.model import attention_count
from roofline.support.bench import Benchmark, Case, Target, Work, matches

TARGETS = (Target("peer:flash", at_least=1.4), Target("peer:cudnn", at_least=0.85))
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
OTHERS = {  # the kernels that overlap, each with the tiles that suit it
    64: [
        Config("overlapped", 64, 128, 4, 3),
        Config("folded", 64, 128, 4, 2),
        Config("folded32", 64, 128, 4, 2),
    ],
    128: [
        Config("overlapped", 64, 64, 4, 3),
        Config("folded", 64, 64, 4, 3),
        Config("folded32", 64, 64, 4, 3),
    ],
}


def _case(batch, heads, kv_heads, length, head_dim, causal, targets=()) -> Case:
    sizes = dict(
        batch=batch, heads=heads, kv_heads=kv_heads, sq=length, sk=length,
        head_dim=head_dim, causal=causal,
    )
    cpu = dict(batch=1, heads=2, kv_heads=1, sq=48, sk=48)
    return Case(sizes, targets=targets, cpu=cpu)


def _cases() -> list[Case]:
    """16,384 tokens of width 2048 in all, cut into sequences of one length."""
    cases = []
    for head_dim in (128, 64):
        heads = 2048 // head_dim
        for length in (512, 1024, 2048, 4096, 8192, 16384):
            aimed = length in (4096, 16384)
            if aimed or head_dim == 128:
                for causal in (False, True):
                    size = (16384 // length, heads, heads, length, head_dim, causal)
                    cases.append(_case(*size, TARGETS if aimed else ()))
    cases += [_case(4, 16, 16, 4096, head_dim, True) for head_dim in (80, 96, 256)]
    return [*cases, _case(4, 32, 8, 4096, 128, True)]


def _torch(q, k, v, causal: bool, name: str):
    gqa = q.shape[1] != k.shape[1]
    with sdpa_kernel(BACKENDS[name]):
        return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=gqa)


def prepare(case: Case, device: str) -> Work:
    batch, heads, kv_heads = case["batch"], case["heads"], case["kv_heads"]
    length, dim, causal = case["sq"], case["head_dim"], case["causal"]
    q, k, v = (
        torch.randn(batch, n, length, dim, device=device).to(case.torch_dtype)
        for n in (heads, kv_heads, kv_heads)
    )
    run = {"roofline": lambda: attention(q, k, v, causal=causal)}
    for name in BACKENDS:
        run[name] = lambda name=name: _torch(q, k, v, causal, name)
    for other in OTHERS[dim] if case.targets else ():
        run[other.kernel] = partial(attention, q, k, v, causal=causal, config=other)
    if dim == 128 and heads == kv_heads and length == 16384:
        one = Config("one-loop", 128, 64, 8, 3)
        two = Config("two-loops", 128, 64, 8, 3)
        run["one-loop"] = lambda: attention(q, k, v, causal=causal, config=one)
        run["two-loops"] = lambda: attention(q, k, v, causal=causal, config=two)
        run["unfused"] = lambda: attention_unfused(q, k, v, causal=causal)

    last = slice(-min(length, 256), None)
    q_last, k_last, v_last = (x[-1:, -1:].double() for x in (q, k, v))
    right = attention_unfused(q_last[:, :, last], k_last, v_last, causal=causal)

    def check(name, out):
        matches(right, 2e-2)(name, out[-1:, -1:, last])

    count = attention_count(
        batch, heads, length, length, dim,
        kv_heads=kv_heads, causal=causal, itemsize=q.itemsize,
    )
    return Work(bytes=count.bytes, flops=count.flops, run=run, check=check)


BENCHMARKS = [
    Benchmark(
        "attention",
        cases=_cases(),
        prepare=prepare,
        quantity="flops",
        limit="matmul-{dtype}",
        steps=("unfused", "one-loop", "two-loops", "overlapped", "folded", "folded32"),
    )
]
