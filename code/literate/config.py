"""The book's settings: the table `[tool.literate]` of its pyproject.toml."""

from __future__ import annotations

import importlib
import sys
import tomllib
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from types import ModuleType

from .errors import BookError, Problem, shown


@dataclass(frozen=True)
class Config:
    """Where the book is and what it talks about. Every field is optional in the file."""

    base: Path
    #: Folders that hold pages, in reading order.
    sources: tuple[str, ...] = ("chapters",)
    #: Folder that tangled files are written into.
    root: str = "code"
    #: MyST extensions; conf.py takes them from here, so that all readings agree.
    extensions: tuple[str, ...] = ("colon_fence", "dollarmath")
    #: Module whose names the `{num}` role may use, and whose `render` formats them.
    namespace: str = ""
    #: Module whose `CONDITIONS` the option `:requires:` may name.
    conditions: str = ""
    #: Globs of data files that computed numbers and figures are drawn from.
    data: tuple[str, ...] = ()
    #: Packages that figure blocks must do without, so that a reader need not install them.
    not_for_weaving: tuple[str, ...] = ()
    #: File that holds what every page's computed numbers print, as agreed to.
    printed: str = ""
    #: Folder for what `literate` remembers of unchanged pages; empty: it remembers nothing.
    cache: str = "_build/literate"
    #: Reports of proof that pages show, each as "LABEL: FILE".
    reports: tuple[str, ...] = ()
    #: Seconds a block may run when it does not say `:timeout:`.
    timeout: float = 120.0

    @cached_property
    def code_root(self) -> Path:
        return (self.base / self.root).resolve()

    def import_module(self, name: str) -> ModuleType:
        """Import from the tree the pages stand in, not from a copy installed elsewhere."""
        self.make_importable()
        module = importlib.import_module(name)
        here = self.code_root.joinpath(*name.split("."))
        for file in (here.with_name(f"{here.name}.py"), here / "__init__.py"):
            found = getattr(module, "__file__", None)
            if file.is_file() and (found is None or Path(found).resolve() != file):
                # Another book's module of this name, or an installed copy, came first.
                raise ImportError(f"{name} is imported from {found}, not from {file}", name=name)
        return module

    def make_importable(self) -> None:
        if str(self.code_root) not in sys.path:
            sys.path.insert(0, str(self.code_root))

    def pages(self) -> list[Path]:
        """Every page of the book, in reading order."""
        found: dict[Path, None] = {}
        for source in self.sources:
            folder = self.base / source
            if not folder.is_dir():
                # Without its pages a book would look as if it had given up all its files.
                file = shown(self.base / "pyproject.toml", Path.cwd())
                raise BookError(Problem(file, 1, f"[tool.literate] sources: no folder {source!r}"))
            found |= dict.fromkeys(p for p in sorted(folder.rglob("*.md")) if not p.is_dir())
        return list(found)

    @cached_property
    def data_files(self) -> list[Path]:
        """Found once: every computed number of a page depends on all of them."""
        return sorted(path for glob in self.data for path in self.base.glob(glob))


def find(start: Path) -> Config | None:
    """The settings that govern `start`: those of the nearest pyproject.toml with them."""
    start = start.resolve()
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            table = _table(file)
            if table is not None:
                return _config(folder, file, table)
    return None


def load(start: Path) -> Config:
    """Like `find`, but a missing table is an error."""
    config = find(start) if start.is_dir() else None
    if config is None:
        raise BookError(
            Problem(str(start), 1, "no pyproject.toml with a [tool.literate] table here or above")
        )
    return config


def _table(file: Path) -> dict | None:
    try:
        return tomllib.loads(file.read_text("utf-8")).get("tool", {}).get("literate")
    except ValueError as error:  # not TOML, or not even UTF-8
        raise BookError(Problem(str(file), 1, f"not valid TOML: {error}")) from error


def _config(base: Path, file: Path, table: dict) -> Config:
    known = {f.name for f in fields(Config)} - {"base"}
    for key in table:
        if key not in known:
            raise BookError(
                Problem(str(file), 1, f"[tool.literate] has no {key!r}; it has {sorted(known)}")
            )
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    for name, value in values.items():
        default = Config.__dataclass_fields__[name].default
        kinds = (int, float) if isinstance(default, float) else type(default)
        if not isinstance(value, kinds) or isinstance(value, bool):
            said = f"[tool.literate] {name}: {value!r} is no {'list' if kinds is tuple else 'string' if kinds is str else 'number'}"
            raise BookError(Problem(str(file), 1, said))
    return Config(base=base, **values)
