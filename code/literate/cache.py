"""Pages as they were last read, so that a large book is tangled as fast as a small one.

Only the command line uses it; tests and pages of the woven book are always read anew. An
entry holds for one text, one state of this package and of the parser, and one set of
settings; a page with anything wrong is never kept. Whatever else is the matter, a damaged
file included, means that pages are read.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from .config import Config
from .records import Page

#: Where the book's settings do not say otherwise; a folder that may be deleted any time.
NAME = "pages.pickle"
#: What decides how a page is read, besides this package. Their files are looked at, too:
#: somebody may be mending a parser in place.
PARSERS = {
    "markdown-it-py": "markdown_it",
    "mdit-py-plugins": "mdit_py_plugins",
    "myst-parser": "myst_parser",
    "pyyaml": "yaml",
    "docutils": "",
}
#: What a kept page is made of. A file that names anything else is not unpickled.
KNOWN = {
    f"{__package__}.records": {"Page", "Block", "Expression"},
    f"{__package__}.conditions": {"Requirement"},
    "pathlib": {"PosixPath", "WindowsPath"},
    "pathlib._local": {"PosixPath", "WindowsPath"},
    "datetime": {"date", "datetime", "timezone", "timedelta"},
}


def pages(config: Config) -> list[Page]:
    """Every page of the book, read or remembered."""
    file = config.base / config.cache / NAME if config.cache else None
    stamp = _stamp(config) if file else ""
    kept = _load(file, stamp) if stamp else {}
    found: list[Page] = []
    entries: dict[str, tuple[str, Page]] = {}
    for path in config.pages():
        try:
            raw = path.read_bytes()
        except OSError:
            raw = None
        page = _remembered(kept.get(str(path)), raw, config)
        if page is None:
            from .reader import read  # with it comes the parser, which takes long to import

            # What was hashed is what is read: the file may be changing under us.
            page = read(path, config, raw)
        if raw is not None and not page.problems:
            entries[str(path)] = (_hash(raw), page)
        found.append(page)
    if stamp and entries != kept:
        _save(file, stamp, entries)
    return found


def _hash(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _remembered(entry: tuple[str, Page] | None, raw: bytes | None, config: Config) -> Page | None:
    if entry is None or raw is None or entry[0] != _hash(raw):
        return None
    try:  # the book's module of conditions may have changed, or what it imports
        for block in entry[1].blocks:
            for requirement in block.options.get("requires", ()):
                requirement.check(config)
    except Exception:
        return None
    return entry[1]


def _stamp(config: Config) -> str:
    """Everything but a page's own text that decides what is read on it; "" if unknown."""
    parts = [sys.version, repr(config)]
    try:
        parts += [f"{name} {version(name)}" for name in PARSERS]
        for module in filter(None, PARSERS.values()):
            parts += _states(Path(find_spec(module).origin).parent)
        for source in sorted(Path(__file__).parent.glob("*.py")):
            parts.append(_hash(source.read_bytes()))
    except (OSError, PackageNotFoundError, AttributeError, TypeError):
        return ""
    return _hash("\0".join(parts).encode())


def _states(folder: Path) -> Iterator[str]:
    """The name, size and time of each of a package's files."""
    for top, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if name.endswith((".py", ".so", ".pyd")):
                state = os.stat(os.path.join(top, name))
                yield f"{top} {name} {state.st_size} {state.st_mtime_ns}"


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str):
        if name not in KNOWN.get(module, ()):
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a page")
        return super().find_class(module, name)


def _load(file: Path, stamp: str) -> dict[str, tuple[str, Page]]:
    try:
        whole = file.read_bytes()
        body = whole[128:]
        if whole[:128] != (stamp + _hash(body)).encode():
            return {}
        return _Unpickler(io.BytesIO(body)).load()
    except Exception:  # whatever is wrong with it: it is only a cache
        return {}


def _save(file: Path, stamp: str, entries: dict) -> None:
    """A folder that cannot be written costs time, and nothing else."""
    with contextlib.suppress(OSError, pickle.PicklingError, RecursionError, TypeError):
        body = pickle.dumps(entries, protocol=5)
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=file.parent, prefix=".pages-")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write((stamp + _hash(body)).encode())
                stream.write(body)
            os.replace(part, file)  # whole, whoever else is writing it
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
