"""The pytest plugin: `pytest chapters/02_x.md` collects a page, `::name` one block.

`--literate-report FILE` keeps what was found of each block, for the pages to show.
"""

from __future__ import annotations

import datetime
from functools import cache
from pathlib import Path

import pytest
from sybil.integration.pytest import SybilFile, SybilItem

from .. import reports
from ..book import Book
from ..config import Config, find
from .documents import BookSybil
from .fresh import Failed, Worker
from .process import process_of
from .report import report


class StepItem(SybilItem):
    """A step as a pytest item."""

    def __init__(self, parent, sybil, example):
        super().__init__(parent, sybil, example)
        self.add_marker(pytest.mark.timeout(self.step.timeout(self.chapter)))
        block = getattr(self.step, "block", None)
        if block is not None and block.name:
            hashed = reports.digest(self.chapter.book, block)
            self.user_properties.append(("literate", [reports.key(block, block.name), hashed]))

    @property
    def step(self):
        return self.example.parsed

    @property
    def chapter(self):
        return self.example.document.chapter

    def runtest(self) -> None:
        worker = self.parent.worker
        if worker is not None:
            reason = worker.run(self.step, self.chapter.page)
        else:
            self.step.compare(self.chapter)
            reason = self.step.skip_reason(self.chapter)
        if reason:
            raise pytest.skip.Exception(reason, _use_item_location=True)
        if worker is None:
            super().runtest()

    def repr_failure(self, excinfo, style=None):
        if isinstance(excinfo.value, Failed):
            return excinfo.value.report
        return report(excinfo.value, self.chapter, self.step.line)

    def reportinfo(self):
        return self.path, self.step.line - 1, self.name


class PageFile(SybilFile):
    """A page as a pytest file, and the process of its own if it asked for one."""

    worker: Worker | None = None

    def collect(self):
        for sybil in self.sybils:
            document = sybil.parse(self.path)
            document.pytest_config = self.config
            self.documents.append(document)
            for example in document.examples():
                yield StepItem.from_parent(self, sybil=sybil, example=example)

    def setup(self) -> None:
        for document in self.documents:
            document.chapter.enter()
            process = process_of(document.chapter.page)
            if process.fresh:
                filters = self.config.getini("filterwarnings")
                self.worker = Worker(document.chapter.page, process.environ, filters)

    def teardown(self) -> None:
        if self.worker is not None:
            self.worker.stop()
            self.worker = None
        for document in self.documents:
            document.chapter.leave()


@cache
def _sybil(config: Config) -> BookSybil:
    config.make_importable()
    return BookSybil(Book(config))


@cache
def _config(folder: Path) -> Config | None:
    return find(folder)


def pytest_collect_file(file_path: Path, parent):
    """Pages of a book are collected; any other Markdown is left alone."""
    if file_path.suffix != ".md":
        return None
    config = _config(file_path.parent)
    if config is None:
        return None
    sybil = _sybil(config)
    if not sybil.has(file_path):
        return None
    return PageFile.from_parent(parent, path=file_path, sybils=[sybil])


def pytest_addoption(parser):
    parser.addoption(
        "--literate-report",
        metavar="FILE",
        help="write what is found of each block into FILE, or bring it up to date",
    )


def pytest_configure(config):
    file = config.getoption("literate_report", None)
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(file).absolute()), "literate-report")


class Recorder:
    """Collects the outcome of each block; under xdist, in the process that has them all."""

    def __init__(self, path: Path):
        self.path = path
        self.outcomes: dict[str, dict] = {}

    def pytest_runtest_logreport(self, report):
        known = dict(report.user_properties).get("literate")
        if not known or (report.when != "call" and report.passed):
            return
        name, hashed = known
        entry = {"outcome": report.outcome, "hash": hashed}
        if report.skipped and isinstance(report.longrepr, tuple):
            entry["reason"] = report.longrepr[2].removeprefix("Skipped: ")
        self.outcomes[name] = entry

    def pytest_sessionfinish(self, session):
        config = _config(Path(session.config.rootpath))
        if config is not None and self.outcomes:
            today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
            reports.write(self.path, _sybil(config).book, self.outcomes, today)
