"""What goes wrong around the book: disks, rights, kills, two at once. Nothing may be lost.

Each fault is a real one where the machine allows it: a disk that is full, a folder that
may not be written, a process that is killed before or after each thing it does to a file.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, SmallBook

from literate.errors import BookError
from literate.tangle import check, tangle
from literate.writing import UNFINISHED

BLOCK = "```{{code-block}} python\n:tangle: {}\n{}\n```\n\n"
SMALL = "x = 1"
#: 64 KiB of Python, more than the disk below has.
LARGE = "\n".join(f"x{n:05} = {n:05}" for n in range(4096))


def literate(book: SmallBook, *arguments: str, prelude: str = "", **options):
    """The command line in a process of its own, with something done to it first."""
    program = f"{prelude}\nimport sys\nfrom literate.cli import main\nsys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "code")}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=book.base, env=environment, capture_output=True, text=True, timeout=120, **options,
    )  # fmt: skip


def files(folder: Path) -> dict[str, str]:
    return {
        p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()
    }


@pytest.fixture
def two(small):
    """Two tangled files; then the chapter says something else of both, much more of one."""
    small.page(BLOCK.format("a.py", SMALL) + BLOCK.format("b.py", SMALL))
    tangle(small.book())
    small.page(BLOCK.format("a.py", "x = 2") + BLOCK.format("b.py", LARGE))
    return small


def refused(done, before: dict[str, str], small: SmallBook, says: str) -> None:
    """It failed at the line of the file that did not fit, and every file is as it was."""
    assert done.returncode == 1, done
    assert done.stderr.startswith("chapters/a.md:6: code/b.py: ") and says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert files(small.base / "code") == before


# --- disks and rights -------------------------------------------------------------------


def test_a_file_that_may_not_grow(two):
    before = files(two.base / "code")
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # noqa: E731
    refused(literate(two, "tangle", preexec_fn=limit), before, two, "File too large")
    assert literate(two, "tangle").returncode == 0 and check(two.book()) == []


def test_a_disk_that_is_full(two):
    """A file system of 32 KiB, in a name space that ends with the process."""
    if not shutil.which("unshare"):
        pytest.skip("needs unshare, of util-linux")
    before = files(two.base / "code")
    script = """
        mount -t tmpfs -o size=32k none code || exit 77
        cp kept/* code/ && "$@"; status=$?
        cp -r code/. after/; exit $status
        """
    shutil.copytree(two.base / "code", two.base / "kept")
    (two.base / "after").mkdir()
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh",
         sys.executable, "-m", "literate", "tangle"],
        cwd=two.base, env={**os.environ, "PYTHONPATH": str(ROOT / "code")},
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    shutil.rmtree(two.base / "code")
    (two.base / "after").rename(two.base / "code")
    refused(done, before, two, "No space left on device")


#: Root may write everywhere; without this capability modes count for root as well.
AS_ANYBODY = """
import ctypes, os
if os.geteuid() == 0:
    class Head(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]
    class Data(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]
    libc, head, data = ctypes.CDLL(None, use_errno=True), Head(0x20080522, 0), (Data * 2)()
    assert libc.capget(ctypes.byref(head), data) == 0, ctypes.get_errno()
    for name in ("effective", "permitted"):
        setattr(data[0], name, getattr(data[0], name) & ~0b110)  # DAC_OVERRIDE, DAC_READ_SEARCH
    assert libc.capset(ctypes.byref(head), data) == 0, ctypes.get_errno()
"""


def test_a_folder_that_may_not_be_written(two):
    before = files(two.base / "code")
    (two.base / "code").chmod(0o555)
    try:
        done = literate(two, "tangle", prelude=AS_ANYBODY)
    finally:
        (two.base / "code").chmod(0o755)
    assert done.returncode == 1 and files(two.base / "code") == before
    assert done.stderr.startswith("chapters/a.md:1: code/a.py: Permission denied"), done.stderr


def test_a_page_and_a_file_that_may_not_be_read(two):
    (two.base / "chapters/a.md").chmod(0)
    done = literate(two, "tangle", prelude=AS_ANYBODY)
    assert done.returncode == 1
    assert done.stderr == "chapters/a.md:1: cannot be read: Permission denied\n"
    (two.base / "chapters/a.md").chmod(0o644)
    (two.base / "code/b.py").chmod(0)
    done = literate(two, "tangle", prelude=AS_ANYBODY)
    assert done.returncode == 1
    assert done.stderr.startswith("chapters/a.md:6: code/b.py: Permission denied"), done.stderr


def test_a_file_for_reading_only_is_brought_up_to_date_and_stays_so(two):
    """What protects it is that it is tangled: a change by hand is what must not be lost."""
    (two.base / "code/a.py").chmod(0o444)
    done = literate(two, "tangle", prelude=AS_ANYBODY)
    assert done.returncode == 0, done.stderr
    assert (two.base / "code/a.py").read_text().endswith("\nx = 2\n")
    assert (two.base / "code/a.py").stat().st_mode & 0o777 == 0o444


# --- kills ------------------------------------------------------------------------------

#: Tangles once for each thing that a tangle does to the disk, and is killed before it.
KILLS = """
import json, os, pathlib, shutil, signal, sys, tempfile
from literate import tangle, writing
from literate.book import Book
from literate.config import load

base = pathlib.Path(sys.argv[1])
code, kept = base / "code", base / "kept"
book = Book(load(base))
left = None

def counted(owner, name):
    plain = getattr(owner, name)
    def call(*args, **options):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if left is not None:
            left -= 1
        return plain(*args, **options)
    setattr(owner, name, call)

for owner, name in ((os, "replace"), (os, "fsync"), (os, "chmod"), (os, "fdopen"), (os, "open"),
                    (pathlib.Path, "unlink"), (tempfile, "mkstemp")):
    counted(owner, name)

seen = []
for point in range(1000):
    shutil.rmtree(code)
    shutil.copytree(kept, code)
    child = os.fork()
    if not child:
        left = point
        tangle.tangle(book)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    found = {p.name: p.read_text() for p in code.iterdir() if p.is_file()}
    tangle.tangle(book)  # the next one finishes what this one began
    after = {p.name: p.read_text() for p in code.iterdir() if p.is_file()}
    seen.append([status, found, after])
    if status == 0:
        break
print(json.dumps(seen))
"""


def test_killed_before_each_step_it_leaves_whole_files_and_the_next_one_finishes(small):
    small.page(BLOCK.format("a.py", SMALL) + BLOCK.format("b.py", SMALL) + BLOCK.format("c.py", SMALL))
    tangle(small.book())
    old = files(small.base / "code")
    shutil.copytree(small.base / "code", small.base / "kept")
    small.page(BLOCK.format("a.py", "x = 2") + BLOCK.format("b.py", LARGE) + BLOCK.format("d.py", SMALL))
    new = {name: file.text for name, file in small.book().files.items()}
    done = subprocess.run(
        [sys.executable, "-c", KILLS, str(small.base)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "code")}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert len(seen) > 15 and [status == 0 for status, _, _ in seen].index(True) == len(seen) - 1
    for point, (_, found, after) in enumerate(seen):
        for name, text in found.items():
            if not name.startswith(UNFINISHED):
                assert text in (old.get(name), new.get(name)), (point, name)
        assert {name for name in old if name in new} <= found.keys(), point
        assert after == new, point


# --- two at once ------------------------------------------------------------------------


def test_many_tangles_at_once(small):
    for number in range(30):
        small.page(BLOCK.format(f"m{number}.py", "x = 1"), f"p{number}.md")
    command = [sys.executable, "-m", "literate", "tangle"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "code")}
    running = [
        subprocess.Popen(command, cwd=small.base, env=environment, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]  # fmt: skip
    said = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0] * 4, said
    # Each file was written by one of them, and the others saw that it was done.
    assert "".join(out for out, _ in said).count("wrote ") == 30
    assert sorted(files(small.base / "code")) == sorted(f"m{n}.py" for n in range(30))
    assert check(small.book()) == []


def test_two_pages_agreed_to_at_once_are_both_agreed_to(small, monkeypatch):
    """Whoever reads the file, adds a page and writes it back must be alone meanwhile."""
    from literate import printed

    small.write("pyproject.toml", '[tool.literate]\nprinted = "numbers.json"\n')
    for name in "abcd":
        small.page("{num}`1 + 1 -> d`\n", f"{name}.md")
    commands = [
        [sys.executable, "-m", "literate", "numbers", f"chapters/{name}.md"] for name in "abcd"
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "code")}
    running = [
        subprocess.Popen(c, cwd=small.base, env=environment, stdout=subprocess.DEVNULL) for c in commands
    ]
    assert [process.wait() for process in running] == [0] * 4
    kept = json.loads((small.base / "numbers.json").read_text())
    assert kept == {f"chapters/{name}.md": ["2"] for name in "abcd"}
    # And a disk that is full costs the new numbers, not the old ones.
    small.page("{num}`1 + 2 -> d`\n", "a.md")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("literate.writing.os.fsync", full)
    book = small.book()
    with pytest.raises(OSError, match="No space left"):
        printed.write(book, book.pages)
    assert json.loads((small.base / "numbers.json").read_text()) == kept
    assert not list(small.base.glob(f"{UNFINISHED}*"))


# --- what people do ---------------------------------------------------------------------


def test_a_deleted_file_and_a_deleted_folder_come_back(small):
    small.page(BLOCK.format("p/a.py", SMALL) + BLOCK.format("p/q/b.py", SMALL))
    tangle(small.book())
    before = files(small.base / "code")
    (small.base / "code/p/a.py").unlink()
    shutil.rmtree(small.base / "code/p/q")
    done = literate(small, "check")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "chapters/a.md:1: code/p/a.py is stale", "chapters/a.md:6: code/p/q/b.py is stale",
    ]  # fmt: skip
    assert done.stdout.count("+x = 1") == 2
    assert literate(small, "tangle").returncode == 0 and files(small.base / "code") == before


def test_a_renamed_chapter_keeps_its_files(small):
    old = small.page(BLOCK.format("a.py", SMALL) + BLOCK.format("b.py", SMALL))
    tangle(small.book())
    old.rename(old.with_name("z.md"))
    done = literate(small, "tangle")
    assert done.stdout.splitlines() == ["wrote code/a.py", "wrote code/b.py"]
    for name in ("a.py", "b.py"):
        text = (small.base / "code" / name).read_text()
        assert text.startswith("# Tangled from chapters/z.md: ") and text.endswith("\nx = 1\n")


def test_a_renamed_chapter_does_not_carry_an_edit_away(small):
    old = small.page(BLOCK.format("a.py", SMALL))
    tangle(small.book())
    target = small.base / "code/a.py"
    target.write_text(target.read_text() + "mine = 1\n")
    old.rename(old.with_name("z.md"))
    done = literate(small, "tangle")
    assert done.returncode == 1 and "mine = 1" in target.read_text()
    assert "changed by hand: carry the change over to chapters/z.md" in done.stderr
    old.with_name("z.md").unlink()
    done = literate(small, "tangle")
    assert done.returncode == 1 and "no chapter has it" in done.stderr and "mine" in target.read_text()


@pytest.mark.parametrize("where", ["a file", "a folder", "the code root"])
def test_a_link_that_leads_out_of_the_tree_is_not_followed(small, where, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "a.py").write_text("precious = 1\n")
    small.page("# A\n\n" + BLOCK.format("p/a.py", SMALL))
    code = small.base / "code"
    if where == "a file":
        (code / "p").mkdir()
        (code / "p/a.py").symlink_to(outside / "a.py")
    elif where == "a folder":
        (code / "p").symlink_to(outside)
    else:  # a code root elsewhere is somebody's wish; what is in there is still theirs
        code.rmdir()
        (outside / "p").mkdir()
        (outside / "a.py").rename(outside / "p/a.py")
        code.symlink_to(outside)
    with pytest.raises(BookError) as caught:
        tangle(small.book())
    assert [(p.path, p.line) for p in caught.value.problems][0][0] in ("chapters/a.md", str(outside / "p/a.py"))
    assert "precious = 1\n" in files(outside).values() and len(files(outside)) == 1


def test_a_chapter_that_changes_while_it_is_tangled_is_found_stale(small):
    """What was read is written; that it is old by then, the next check says."""
    small.page(BLOCK.format("a.py", SMALL))
    book = small.book()
    small.page(BLOCK.format("a.py", "x = 2"))
    tangle(book)
    (stale,) = check(small.book())
    assert not stale.edited and stale.file.page == "chapters/a.md"
    tangle(small.book())
    assert check(small.book()) == []
