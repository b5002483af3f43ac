"""Run a figure block, as weaving does: alone, and without what weaving may not need."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import ModuleType

from .config import Config
from .records import Block


def draw(block: Block, config: Config):
    """The matplotlib figure that the block leaves in `figure`. Raises what the block raises."""
    config.make_importable()
    import matplotlib

    matplotlib.use("agg")
    file = str(config.base / block.path)
    source = "\n" * (block.code_line - 1) + block.text + "\n"
    module = ModuleType(f"figure_{block.name or block.line}")
    module.__file__ = file
    code = compile(source, file, "exec", dont_inherit=True)
    with _absent(config.not_for_weaving):
        exec(code, module.__dict__)
    figure = getattr(module, "figure", None)
    if not hasattr(figure, "savefig"):
        raise TypeError("the block leaves no matplotlib figure in `figure`")
    return figure


def close(figure) -> None:
    """Forget a figure that pyplot made; it would keep it for ever."""
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close(figure)


@contextmanager
def _absent(names: tuple[str, ...]):
    """Make `import name` fail, also on a machine that has it."""
    kept = {name: sys.modules.get(name) for name in names}
    sys.modules.update(dict.fromkeys(names))
    try:
        yield
    finally:
        for name, module in kept.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
