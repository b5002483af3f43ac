"""Foundations: GPU programming and the roofline, as an importable package.

The kernels are functions of this package, named as PyTorch names them:
`roofline.softmax(x, dim=-1)`. They, and the modules they live in, are imported when
they are first used, so that `import roofline` needs neither torch nor Triton.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

#: Public functions by name, with the module that each lives in. A module that is not
#: there (a chapter not yet written) takes its functions out of the package's names.
_FUNCTIONS = {
    "gpu": "hardware",
    "discover": "hardware",
    "ridge": "model",
    "attainable": "model",
    "time_bound": "model",
    "softmax": "softmax",
    "matmul": "matmul",
    "attention": "attention",
    "rms_norm": "rope_rms_norm",
    "add_rms_norm": "rope_rms_norm",
    "rope": "rope_rms_norm",
    "rope_qk": "rope_rms_norm",
    "rope_rms_norm": "rope_rms_norm",
}


class _Package(ModuleType):
    """Keeps a function's name for the function, though a module may share it.

    Importing `roofline.softmax` makes Python set `roofline.softmax` to that module;
    here the name goes to the function in it, whatever was imported first. Names in
    the module are had by `from roofline.softmax import …`.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and _FUNCTIONS.get(name) == name:
            value = getattr(value, name, value)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    module = _FUNCTIONS.get(name, name)
    if name.startswith("_") or not _there(module):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    loaded = _load(module)
    if name not in _FUNCTIONS:
        return loaded
    try:
        function = getattr(loaded, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    globals()[name] = function
    return function


def __dir__() -> list[str]:
    functions = [name for name, module in _FUNCTIONS.items() if _there(module)]
    dunders = [name for name in globals() if name.startswith("__")]
    return sorted({"__version__", *dunders, *functions})


def _there(module: str) -> bool:
    return find_spec(f"{__name__}.{module}") is not None


def _load(module: str) -> ModuleType:
    try:
        return import_module(f"{__name__}.{module}")
    except ModuleNotFoundError as error:
        from roofline.support.extras import advice

        text = advice(f"{__name__}.{module}", error)
        if text is None:
            raise
        raise ImportError(text, name=error.name) from error


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version(__name__)
    except metadata.PackageNotFoundError:
        return "0+unknown"  # a source tree that was never installed
