# Tangled from chapters/04b_attention_backward.md: edit it there, then run `make tangle`.
# Content hash: 6682a7bec4c2941f

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


def _case(length, heads, kv_heads, head_dim, causal) -> Case:
    """16,384 tokens in all, cut into sequences of one length."""
    sizes = dict(
        batch=16384 // length, heads=heads, kv_heads=kv_heads, sq=length, sk=length,
        head_dim=head_dim, causal=causal,
    )
    cpu = dict(batch=1, heads=4, kv_heads=2, sq=48, sk=48)
    return Case(sizes, targets=TARGETS, cpu=cpu)


CASES = [
    _case(length, 2048 // head_dim, 2048 // head_dim, head_dim, causal)
    for head_dim in (64, 128)
    for length in (4096, 16384)
    for causal in (False, True)
] + [_case(4096, 32, 8, 128, True)]


def exact(q, k, v, do, causal: bool, rows: int = 1024):
    """The gradients of one key head in float64; q and do hold the heads of its group."""
    tau = k.shape[1] ** -0.5
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    for h in range(len(q)):
        for at in range(0, q.shape[1], rows):
            part = slice(at, at + rows)
            s = tau * q[h, part] @ k.T
            if causal:
                hidden = torch.ones_like(s, dtype=torch.bool).triu(at + 1)
                s = s.masked_fill(hidden, -torch.inf)
            p = torch.softmax(s, 1)
            dp = do[h, part] @ v.T
            ds = tau * p * (dp - (p * dp).sum(1, keepdim=True))
            dq[h, part] = ds @ k
            dk += ds.T @ q[h, part]
            dv += p.T @ do[h, part]
    return dq, dk, dv


def prepare(case: Case, device: str) -> Work:
    batch, heads, kv_heads = case["batch"], case["heads"], case["kv_heads"]
    length, dim, causal = case["sq"], case["head_dim"], case["causal"]
    q, k, v, do = (
        torch.randn(batch, n, length, dim, device=device).to(case.torch_dtype)
        for n in (heads, kv_heads, kv_heads, heads)
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
        options = dict(is_causal=causal, enable_gqa=heads != kv_heads)
        with sdpa_kernel(backend):
            run[name] = backward_of(scaled_dot_product_attention(*inputs, **options))

    group = slice(-(heads // kv_heads), None)
    last = q[-1, group], k[-1, -1], v[-1, -1], do[-1, group]
    want = exact(*(x.detach().double() for x in last), causal)

    def check(name, grads):
        mine = grads[0][-1, group], grads[1][-1, -1], grads[2][-1, -1]
        for which, got, right in zip(("dq", "dk", "dv"), mine, want):
            error = ((got - right).norm() / right.norm()).item()
            assert error < 2e-2, f"{name}: {which} is off by {error:.2g} of its norm"

    forward = attention_count(
        batch, heads, length, length, dim,
        kv_heads=kv_heads, causal=causal, itemsize=q.itemsize,
    )
    return Work(  # five products for two; eight tensors for four
        bytes=2 * forward.bytes, flops=5 * forward.flops // 2,
        run=run, check=check, missing=missing,
    )


BENCHMARKS = [
    Benchmark(
        "attention-backward",
        cases=CASES,
        prepare=prepare,
        quantity="flops",
        limit="matmul-{dtype}",
    )
]
