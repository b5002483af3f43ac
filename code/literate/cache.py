"""Pages as they were last read, so that a large book is tangled as fast as a small one.

Only the command line uses it; tests and pages of the woven book are always read anew. An
entry holds for one text, one version of this package and of the parser, and one set of
settings; anything else, a damaged file included, means that the page is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from .config import Config
from .records import Page

#: Where the book's settings do not say otherwise; a folder that may be deleted any time.
NAME = "pages.pickle"


def pages(config: Config) -> list[Page]:
    """Every page of the book, read or remembered."""
    file = config.base / config.cache / NAME if config.cache else None
    # The rest of this package, and with it the parser, is imported only if it is needed.
    stamp = _stamp(config)
    kept = _load(file, stamp)
    found: list[Page] = []
    entries = {}
    for path in config.pages():
        key = str(path)
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            digest = ""
        if digest and key in kept and kept[key][0] == digest:
            entries[key] = kept[key]
        else:
            from .reader import read

            entries[key] = (digest, read(path, config))
        found.append(entries[key][1])
    if file is not None and entries != kept:
        _save(file, stamp, entries)
    return found


def _stamp(config: Config) -> str:
    """Everything but a page's own text that decides what is read on it."""
    parts = [sys.version, *(version(name) for name in ("myst-parser", "markdown-it-py", "docutils"))]
    sources = sorted(Path(__file__).parent.glob("*.py"))
    if config.conditions:
        sources.append(config.code_root.joinpath(*config.conditions.split(".")).with_suffix(".py"))
    for source in sources:
        with contextlib.suppress(OSError):
            parts.append(hashlib.sha256(source.read_bytes()).hexdigest())
    parts.append(repr(config))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _load(file: Path | None, stamp: str) -> dict[str, tuple[str, Page]]:
    try:
        with open(file, "rb") as stream:
            return pickle.load(stream) if stream.read(64) == stamp.encode() else {}
    except Exception:  # whatever is wrong with it: it is only a cache
        return {}


def _save(file: Path, stamp: str, entries: dict) -> None:
    """A folder that cannot be written costs time, and nothing else."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=file.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(stamp.encode())
                pickle.dump(entries, stream, protocol=5)
            os.replace(part, file)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
