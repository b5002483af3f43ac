# Tangled from chapters/08_jax_sharding_pipeline.md: edit it there, then run `make tangle`.
# Content hash: 5a38face0df63c6d

"""The softmax of chapter 2, written in Pallas, JAX's own language for kernels."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def _kernel(x, y):
    row = x[...].astype(jnp.float32)
    exp = jnp.exp(row - row.max(1, keepdims=True))
    y[...] = (exp / exp.sum(1, keepdims=True)).astype(y.dtype)


def softmax(x: jax.Array) -> jax.Array:
    """Softmax along the last dimension of a matrix, one row to a program.

    x  shape (rows, cols), floating point; a row must fit a multiprocessor's registers
    On a CPU the kernel is interpreted; on a GPU it is compiled through Triton.
    """
    if x.ndim != 2 or not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"x must be a matrix of floats, got {x.dtype}{x.shape}")
    rows, cols = x.shape
    width = pl.next_power_of_2(cols)  # Triton's tiles have such widths only
    if width > cols:
        x = jnp.pad(x, ((0, 0), (0, width - cols)), constant_values=-jnp.inf)
    on_cpu = jax.default_backend() == "cpu"
    row = pl.BlockSpec((1, width), lambda i: (i, 0))
    y = pl.pallas_call(
        _kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(rows,),
        in_specs=[row],
        out_specs=row,
        interpret=on_cpu,
        compiler_params=None if on_cpu else _triton(width),
    )(x)
    return y[:, :cols]


def _triton(width: int):
    from jax.experimental.pallas import triton

    return triton.CompilerParams(num_warps=min(max(width // 256, 1), 16), num_stages=1)
