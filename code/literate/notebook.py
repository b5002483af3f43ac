"""What the first cell of a chapter's notebook calls; needs Jupyter, and nothing of Sphinx."""

from __future__ import annotations

import base64
import importlib
from pathlib import Path
from symtable import symtable

from .conditions import parse_requirements
from .config import Config


def check(answer: float | None, hidden: str, tolerance: float) -> None:
    """Say whether a number is the one that an exercise asks for."""
    right = float(base64.b64decode(hidden))
    if answer is None:
        print("Put your number in the place of None and run the cell again.")
    elif abs(answer - right) <= tolerance * abs(right):
        print(f"Right: {right:.4g}.")
    else:
        print("Not yet: too " + ("small." if answer < right else "large."))


def _bound(source: str) -> list[str]:
    """The names that this source defines or imports at its top level, not those it reads."""
    symbols = symtable(source, "cell", "exec").get_symbols()
    return [s.get_name() for s in symbols if s.is_assigned() or s.is_imported()]


def start(conditions: str = "") -> None:
    """Teach this notebook `%%requires`, `%%tangled` and `%%drawn`; figures get a light ground.

    conditions  the book's module of conditions; see `literate.conditions`
    """
    from IPython import get_ipython
    from IPython.display import display

    shell = get_ipython()
    config = Config(base=Path.cwd(), conditions=conditions)

    def requires(line: str, cell: str) -> None:
        """Run the cell if its conditions hold here, else say which does not."""
        reasons = [r.unmet(config) for r in parse_requirements(line)]
        missing = [reason for reason in reasons if reason]
        if missing:
            print("Not run: " + "; ".join(missing) + ".")
        else:
            shell.run_cell(cell).raise_error()

    def tangled(line: str, cell: str) -> None:
        """Run the cell in the module that it is a part of, so that an edit changes that.

        What it defines is then known here as well.
        """
        module = importlib.import_module(line.strip())
        file = shell.compile.cache(cell)  # where `inspect`, and so Triton, find the source
        code = compile(cell, file, "exec", dont_inherit=True)
        exec(code, vars(module))
        shell.push({n: vars(module)[n] for n in _bound(cell) if n in vars(module)})

    def drawn(line: str, cell: str) -> None:
        """Run the cell alone, as the book does with a figure's block, and show its figure.

        Neither side sees the other's names.
        """
        names = {"__name__": "__figure__"}
        exec(compile(cell, shell.compile.cache(cell), "exec", dont_inherit=True), names)
        display(names["figure"])

    shell.push({"check": check})
    shell.register_magic_function(requires, "cell", "requires")
    shell.register_magic_function(tangled, "cell", "tangled")
    shell.register_magic_function(drawn, "cell", "drawn")
    try:
        from matplotlib_inline.config import InlineBackend
    except ImportError:  # no matplotlib: then no figure either
        return
    shell.run_line_magic("matplotlib", "inline")
    paper = {"facecolor": "white", "bbox_inches": "tight"}
    InlineBackend.instance(parent=shell).print_figure_kwargs = paper
