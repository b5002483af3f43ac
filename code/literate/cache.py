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
from importlib.util import find_spec
from pathlib import Path

from .config import Config
from .records import Page

#: Where the book's settings do not say otherwise; a folder that may be deleted any time.
NAME = "pages.pickle"
#: So many unread pages are worth starting processes for.
MANY = 100
#: What decides how a page is read, besides this package. What is installed beside each
#: tells its version; its files are looked at, too: somebody may be mending it in place.
PARSERS = ("markdown_it", "mdit_py_plugins", "myst_parser", "yaml", "docutils")
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
    hashes: dict[Path, str] = {}
    missing: list[tuple[Path, bytes | None]] = []
    found: dict[Path, Page | None] = {}
    for path in config.pages():
        raw, hashes[path] = None, ""
        with contextlib.suppress(OSError):
            raw = path.read_bytes()
            hashes[path] = _hash(raw)
        found[path] = _remembered(kept.get(str(path)), hashes[path], config)
        if found[path] is None:
            # What was hashed is what is read: a file may be changing under us.
            missing.append((path, raw))
    found |= {page.file: page for page in _read(missing, config)}
    entries = {
        str(path): (hashes[path], page)
        for path, page in found.items()
        if hashes[path] and not page.problems
    }
    # A page that was remembered is the one that is kept: only what was read can differ.
    if stamp and (missing or entries.keys() != kept.keys()):
        _save(file, stamp, entries)
    return list(found.values())


def _read(missing: list[tuple[Path, bytes | None]], config: Config) -> list[Page]:
    """Read pages; many of them on all processors, since none needs another."""
    if not missing:
        return []
    from . import reader  # noqa: F401 - with it comes the parser, which takes long to import

    if len(missing) < MANY or not hasattr(os, "sched_getaffinity"):
        return _part(missing, config)
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # Forked: the parser is imported once. Nothing has started a thread by now.
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("fork")) as pool:
        part = -(-len(missing) // 16)
        parts = [missing[at : at + part] for at in range(0, len(missing), part)]
        return [page for pages in pool.map(_part, parts, [config] * len(parts)) for page in pages]


def _part(missing: list[tuple[Path, bytes | None]], config: Config) -> list[Page]:
    from .reader import read

    return [read(path, config, raw) for path, raw in missing]


def _hash(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _remembered(entry: tuple[str, Page] | None, hashed: str, config: Config) -> Page | None:
    if entry is None or not hashed or entry[0] != hashed:
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
        for folder in (Path(find_spec(module).origin).parent for module in PARSERS):
            parts += _states(folder)
            parts += _installed(folder.parent)
        for source in sorted(Path(__file__).parent.glob("*.py")):
            parts.append(_hash(source.read_bytes()))
    except (OSError, AttributeError, TypeError):
        return ""
    return _hash("\0".join(parts).encode())


def _states(folder: Path) -> Iterator[str]:
    """The name, size and time of each of a package's files."""
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        for name in sorted(names):
            if name.endswith((".py", ".so", ".pyd")):
                state = os.stat(os.path.join(top, name))
                yield f"{top} {name} {state.st_size} {state.st_mtime_ns}"


def _installed(folder: Path) -> list[str]:
    """Names and versions of what stands in a folder of packages."""
    return sorted(n for n in os.listdir(folder) if n.endswith((".dist-info", ".egg-info")))


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
