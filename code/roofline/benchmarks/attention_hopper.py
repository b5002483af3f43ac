# Tangled from chapters/04c_attention_below_triton.md: edit it there, then run `make tangle`.
# Content hash: c801c15fe8015f6e

"""Attention by specialised warps, beside Triton's kernel and the libraries."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from roofline.attention import attention, attention_unfused
from roofline.attention_hopper import attention_hopper
from roofline.model import attention_count
from roofline.support.bench import Benchmark, Case, Target, Work, matches

CASES = [
    Case(
        dict(
            batch=16384 // length, heads=2048 // dim, sq=length, head_dim=dim,
            causal=causal,
        ),
        targets=(Target("peer:cudnn", at_least=1.0),),
        cpu=dict(batch=3, heads=3, sq=48),
    )
    for dim in (128, 64)
    for length in (4096, 8192, 16384)
    for causal in (False, True)
]


def prepare(case: Case, device: str) -> Work:
    shape = case["batch"], case["heads"], case["sq"], case["head_dim"]
    causal = case["causal"]
    q, k, v = (torch.randn(shape, device=device).to(case.torch_dtype) for _ in "qkv")

    def cudnn():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    run = {
        "roofline": lambda: attention_hopper(q, k, v, causal=causal),
        "triton": lambda: attention(q, k, v, causal=causal),
        "cudnn": cudnn,
    }
    last = slice(-min(case["sq"], 256), None)
    q_last, k_last, v_last = (x[-1:, -1:].double() for x in (q, k, v))
    right = attention_unfused(q_last[:, :, last], k_last, v_last, causal=causal)

    def check(name, out):
        matches(right, 2e-2)(name, out[-1:, -1:, last])

    batch, heads, length, dim = shape
    count = attention_count(
        batch, heads, length, length, dim, causal=causal, itemsize=q.itemsize
    )
    return Work(bytes=count.bytes, flops=count.flops, run=run, check=check)


BENCHMARKS = [
    Benchmark(
        "attention-hopper",
        cases=CASES,
        prepare=prepare,
        quantity="flops",
        limit="matmul-{dtype}",
        steps=("triton",),
    )
]
