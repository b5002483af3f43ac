"""What every kernel's function asks of a tensor before it touches memory.

A kernel reads addresses: it would take a sparse tensor's parts, a negated view's raw
memory or an integer's bits for numbers, and no gradient passes through it. All of these
are refused here (or, for the negated view, resolved), in one voice.
"""

from __future__ import annotations

SHORT = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16",
    "float8_e4m3fn": "fp8 (e4m3)", "float8_e5m2": "fp8 (e5m2)",
}  # fmt: skip


def dtype_names(dtypes) -> str:
    """`(torch.float16, torch.bfloat16)` → 'fp16 or bf16'."""
    plain = [str(dtype).removeprefix("torch.") for dtype in dtypes]
    *most, last = [SHORT.get(name, name) for name in plain]
    return f"{', '.join(most)} or {last}" if most else last


def check_tensor(name: str, x, dtypes):
    """The tensor, fit for a kernel.

    Raises TypeError if `x` is no tensor or of a dtype not in `dtypes`; ValueError if it is
    not dense, neither on a CUDA device nor on a CPU, or wants a derivative recorded.
    """
    import torch

    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    if x.dtype not in dtypes:
        raise TypeError(f"{name} must be {dtype_names(dtypes)}, got {x.dtype}")
    if x.layout != torch.strided:
        raise ValueError(f"{name} must be a dense (strided) tensor, got {x.layout}")
    if x.device.type not in ("cuda", "cpu"):
        raise ValueError(f"{name} must be on a CUDA device or a CPU, got {x.device}")
    if x.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{name} must not require grad, got requires_grad=True: no gradient is "
            f"recorded here; call under torch.no_grad() or pass {name}.detach()"
        )
    if not torch.compiler.is_compiling():
        if torch.autograd.forward_ad.unpack_dual(x).tangent is not None:
            raise ValueError(
                f"{name} must not carry a tangent of forward-mode differentiation: a "
                "kernel would drop it; differentiate backward, or use PyTorch's operations"
            )
    return x.resolve_neg()
