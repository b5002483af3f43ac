"""A page's process of its own, as seen from pytest's; `worker` is what runs in it.

It starts when the first of the page's steps is asked for, and ends with the page.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ..errors import BookError, Problem
from ..records import Page
from .report import FailureReport
from .steps import Step


def digest(page: Page) -> str:
    """Two processes read the page; this tells whether they read the same."""
    return hashlib.sha256(page.source.encode()).hexdigest()


class Failed(Exception):
    """A step failed in the page's process; `report` is what was said of it there."""

    def __init__(self, report: FailureReport):
        super().__init__(str(report))
        self.report = report


class Worker:
    """The second Python, as seen from the first."""

    def __init__(self, page: Page, environ: Mapping[str, str], filters: list[str]):
        source = Path(__file__).parents[2]
        path = [str(source), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.worker", page.file, json.dumps(filters)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environ, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            text=True,
            encoding="utf-8",
        )
        self._ended = ""

    def run(self, step: Step, page: Page) -> str | None:
        """Run a step there; returns why it was skipped, or None if it passed."""
        if self._ended:
            raise BookError(Problem(page.path, step.line, f"did not run: {self._ended}"))
        question = json.dumps([step.id, step.line, digest(page)])
        try:
            self._process.stdin.write(question + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        except BaseException:
            # Its time is up, say. What it was doing cannot be taken up again.
            self._end(f"the page's process was stopped at line {step.line}")
            raise
        if not answer:
            code = self._process.wait()
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"
            self._end(f"the page's process ended {how} at line {step.line}")
            raise BookError(Problem(page.path, step.line, self._ended))
        said = json.loads(answer)
        if "report" in said:
            raise Failed(FailureReport(*said["report"]))
        return said["skipped"]

    def stop(self) -> None:
        """Let it end by itself, which it does when nobody can ask any more; not for long."""
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(10)
        self._end("the page is over")

    def _end(self, why: str) -> None:
        self._ended = why
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
