"""The pytest plugin: `pytest chapters/02_x.md` collects a page, `::name` one block."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from sybil.integration.pytest import SybilFile, SybilItem

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
