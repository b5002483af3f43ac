"""Files are replaced whole: whatever happens meanwhile, nobody ever finds half of one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

try:
    from fcntl import LOCK_EX, flock
except ImportError:  # Windows: two at once are then each other's business
    flock = None

#: How a file is called until it is whole; only a process that was killed leaves one behind.
UNFINISHED = ".tangling-"


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process at a time writes here; the others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    if flock is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        flock(handle, LOCK_EX)  # let go of when the folder is closed, or its holder dies
        yield
    finally:
        os.close(handle)


def write(path: Path, text: str) -> None:
    """Replace a file in one step: a crash leaves the old one or the new one, whole."""
    part = Part(path, text)
    try:
        part.save()
        part.take_its_place()
    except BaseException:
        part.drop()
        raise


class Part:
    """A file that is written beside the one that it is to replace."""

    def __init__(self, path: Path, text: str):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, self.name = tempfile.mkstemp(dir=path.parent, prefix=UNFINISHED)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
                stream.write(text)
        except BaseException:
            self.drop()
            raise

    def save(self) -> None:
        """Have it on the disk, not in a buffer that a power cut would take along."""
        handle = os.open(self.name, os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def take_its_place(self) -> None:
        mode = self.path.stat().st_mode & 0o777 if self.path.exists() else 0o644
        os.chmod(self.name, mode)
        os.replace(self.name, self.path)

    def drop(self) -> None:
        Path(self.name).unlink(missing_ok=True)
