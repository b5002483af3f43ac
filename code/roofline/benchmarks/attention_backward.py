# Tangled from chapters/04b_attention_backward.md: edit it there, then run `make tangle`.
# Content hash: 1e1ae597438db057

"""Attention, backward: two lengths, two head dimensions, both masks."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from roofline.attention import attention
from roofline.model import attention_count
from roofline.support.bench import Benchmark, Case, Target, Work

TARGETS = (Target("peer:flash", at_least=0.9),)
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def _cases() -> list[Case]:
    """16,384 tokens of width 2048 in all, cut into sequences of one length."""
    cases = []
    for head_dim in (128, 64):
        for length in (4096, 16384):
            for causal in (False, True):
                sizes = dict(
                    batch=16384 // length, heads=2048 // head_dim, sq=length, sk=length,
                    head_dim=head_dim, causal=causal,
                )
                cpu = dict(batch=1, heads=2, sq=48, sk=48)
                cases.append(Case(sizes, targets=TARGETS, cpu=cpu))
    return cases


def prepare(case: Case, device: str) -> Work:
    batch, heads, length = case["batch"], case["heads"], case["sq"]
    dim, causal = case["head_dim"], case["causal"]
    q, k, v, do = (
        torch.randn(batch, heads, length, dim, device=device).to(case.torch_dtype)
        for _ in range(4)
    )
    inputs = [x.requires_grad_() for x in (q, k, v)]

    def backward_of(out):
        return lambda: torch.autograd.grad(out, inputs, do, retain_graph=True)

    run = {"roofline": backward_of(attention(*inputs, causal=causal))}
    missing = {}
    for name, backend in BACKENDS.items():
        if device == "cpu" and name == "cudnn":
            missing[name] = "needs a GPU"
            continue
        with sdpa_kernel(backend):
            out = scaled_dot_product_attention(*inputs, is_causal=causal)
        run[name] = backward_of(out)

    # One head in float64: on the last positions where all others can be left out.
    last = [x[-1:, -1:].detach().double().requires_grad_() for x in (q, k, v)]
    small = 1024
    want = None
    if length <= small or not causal:
        rows = slice(-small, None)  # dq of the last rows needs no other row
        s = last[0][:, :, rows] @ last[1].mT * dim**-0.5
        if causal:
            s = s.masked_fill(~torch.ones_like(s, dtype=torch.bool).tril(), -torch.inf)
        o = torch.softmax(s, -1) @ last[2]
        (want,) = torch.autograd.grad(o, last[0], do[-1:, -1:, rows].double())
        want = want[:, :, rows]
    else:
        rows = slice(0, small)  # the first rows see the first keys only
        s = last[0][:, :, rows] @ last[1][:, :, rows].mT * dim**-0.5
        s = s.masked_fill(~torch.ones_like(s, dtype=torch.bool).tril(), -torch.inf)
        o = torch.softmax(s, -1) @ last[2][:, :, rows]
        (want,) = torch.autograd.grad(o, last[0], do[-1:, -1:, rows].double())
        want = want[:, :, rows]

    def check(name, grads):
        got = grads[0][-1:, -1:, rows].double()
        error = ((got - want).norm() / want.norm()).item()
        assert error < 2e-2, f"{name}: dq is off by {error:.2g} of its norm"

    forward = attention_count(
        batch, heads, length, length, dim, causal=causal, itemsize=q.itemsize
    )
    return Work(  # five products for two; eight tensors for four
        bytes=2 * forward.bytes, flops=5 * forward.flops // 2,
        run=run, check=check, missing=missing,
    )


BENCHMARKS = [
    Benchmark(
        "attention-backward",
        cases=_cases(),
        prepare=prepare,
        quantity="flops",
        limit="matmul-{dtype}",
    )
]
