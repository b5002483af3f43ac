# Tangled from chapters/04d_attention_fp8.md: edit it there, then run `make tangle`.
# Content hash: 7fb8e55580d553b9

"""Attention in fp8, beside the same in bf16; with the rounding, and without."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from roofline.attention import attention_unfused
from roofline.attention_fp8 import attention_fp8, attention_quantized, quantize
from roofline.attention_hopper import attention_hopper
from roofline.model import attention_count
from roofline.support.bench import Benchmark, Case, Target, Work, matches

CASES = [
    Case(
        dict(
            batch=16384 // length, heads=2048 // dim, sq=length, head_dim=dim,
            causal=causal,
        ),
        dtype="fp8",
        targets=(Target("peer:bf16", at_least=1.4),),
        cpu=dict(batch=1, heads=2, sq=48),
    )
    for dim in (128, 64)
    for length in (4096, 16384)
    for causal in (False, True)
]


def prepare(case: Case, device: str) -> Work:
    shape = case["batch"], case["heads"], case["sq"], case["head_dim"]
    causal = case["causal"]
    q, k, v = (torch.randn(shape, device=device).bfloat16() for _ in "qkv")
    x = quantize(q, k, v)

    def cudnn():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    run = {
        "roofline": lambda: attention_quantized(x, causal=causal),
        "and rounding": lambda: attention_fp8(q, k, v, causal=causal),
        "bf16": lambda: attention_hopper(q, k, v, causal=causal),
        "cudnn": cudnn,
    }
    last = slice(-min(case["sq"], 256), None)
    q_last, k_last, v_last = (x[-1:, -1:].double() for x in (q, k, v))
    right = attention_unfused(q_last[:, :, last], k_last, v_last, causal=causal)

    def check(name, out):
        bound = 2e-2 if name in ("bf16", "cudnn") else 8e-2
        matches(right, bound)(name, out[-1:, -1:, last])

    batch, heads, length, dim = shape
    count = attention_count(batch, heads, length, length, dim, causal=causal, itemsize=1)
    bytes = count.bytes + q.numel()  # the output is in bf16
    return Work(bytes=bytes, flops=count.flops, run=run, check=check)


BENCHMARKS = [
    Benchmark(
        "attention-fp8",
        cases=CASES,
        prepare=prepare,
        quantity="flops",
        limit="matmul-{dtype}",
        steps=("and rounding",),
    )
]
