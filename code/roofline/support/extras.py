"""Which optional part of the installation a missing module belongs to."""

from __future__ import annotations

_EXTRAS = {
    "torch": "kernels",
    "triton": "kernels",
    "numpy": "kernels",
    "jax": "jax",
    "matplotlib": "book",
}


def advice(what: str, error: ModuleNotFoundError) -> str | None:
    """What to install so that `what` works; None for a module of no extra."""
    name = (error.name or "").partition(".")[0]
    if name not in _EXTRAS:
        return None
    return (
        f"{what} needs {name}, which is not installed: "
        f"pip install 'roofline[{_EXTRAS[name]}]'"
    )
