"""A page may ask for a process of its own; all that holds of pages holds of it too."""

from __future__ import annotations

import pytest

HEAD = """\
---
literate:
  process: fresh
  environ: {READ_AT_START: "8"}
---
"""


def block(code: str, *options: str, language: str = "python") -> str:
    return f"```{{code-block}} {language}\n" + "".join(f":{o}\n" for o in options) + code + "\n```\n\n"


LIBRARY = block(
    "import os\nat_import = os.environ['READ_AT_START']", "tangle: tiny/lib.py", "name: lib"
) + block("assert at_import == '8'", "name: imports")
STEPS = (
    block("import os, sys\nassert os.environ['READ_AT_START'] == '8'\nkept = os.getpid()\nprint('noise')\nos.write(1, b'{}')", "name: start")
    + "Half of six is {num}`6 / 2 -> .1f`.\n\n"
    + block("assert kept == os.getpid()\nprint(1 / 3)", "name: use")
    + block("0.333", "output: 0.01", language="text")
    + block("forever()", "name: shown", "display-only: it would take a week")
    + block("1 / 0", "name: asks", "requires: moon>=1.3")
)  # fmt: skip


@pytest.fixture
def fresh(small):
    small.write("pyproject.toml", '[tool.literate]\nconditions = "conditions"\n')
    small.write("code/conditions.py", "CONDITIONS = {'moon': ('a moon', lambda: (1, 2))}\n")
    small.page(HEAD + LIBRARY + STEPS)
    assert small.run("literate", "tangle").returncode == 0
    small.page(block("import os\nassert 'READ_AT_START' not in os.environ", "name: other"), "b.md")
    return small


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_it_runs_there_with_its_environment_and_nowhere_else(fresh, workers):
    done = fresh.prove("chapters", *workers)
    assert done.returncode == 0, done.stdout
    assert "8 passed, 2 skipped" in done.stdout
    assert "display only: it would take a week" in done.stdout
    assert "needs moon>=1.3, and here it is 1.2" in done.stdout
    for name in ("census", "lib", "imports", "start", "use"):
        assert f"chapters/a.md::{name}" in done.stdout


def test_one_block_runs_alone(fresh):
    done = fresh.prove("chapters/a.md::use")
    assert done.returncode == 0 and "1 passed" in done.stdout


def test_what_the_tester_has_set_stays(fresh, monkeypatch):
    monkeypatch.setenv("READ_AT_START", "3")
    done = fresh.prove("chapters/a.md")
    assert "chapters/a.md:15: AssertionError" in done.stdout, done.stdout
    assert "assert '3' == '8'" in done.stdout


#: What is changed into what, the text at whose line that must be seen, and what is said.
FAULTS = {
    "assertion": ("kept == os.getpid()", "kept == -1", "kept == -1", "AssertionError"),
    "output": ("0.333", "0.35", "``` :output:", "the block above prints something else"),
    "number": ("6 / 2 ->", "six / 2 ->", "six / 2", "{num}`six / 2"),
    "untagged": ("{code-block} python\n:name: start", "python\n:name: start", "``` start", "Python in"),
    "exit": ("kept = os.getpid()", "kept = sys.exit(3)", "sys.exit", "SystemExit: 3"),
    "death": ("kept = os.getpid()", "os._exit(3)", "``` start", "the page's process ended with exit status 3"),
    "signal": ("kept = os.getpid()", "os.kill(os.getpid(), 9)", "``` start", "the page's process ended by SIGKILL"),
    "hang": (":name: start\n", ":name: start\n:timeout: 5\nimport time\ntime.sleep(60)\n", "``` start", "Failed: Timeout"),
    "words": ("process: fresh", "process: new", "---", "front matter `literate:`"),
    "type": ('"8"', "8", "---", "front matter `environ:`"),
}  # fmt: skip


def test_a_planted_fault_turns_its_page_red_at_its_line_and_no_other(fresh):
    lines = {}
    for name, (old, new, at, _) in FAULTS.items():
        assert (HEAD + STEPS).count(old) == 1
        text = (HEAD + STEPS).replace(old, new)
        for id in ("start", "use", "shown", "asks"):
            text = text.replace(f":name: {id}\n", f":name: {name}-{id}\n")
        fresh.page(text, f"{name}.md")
        # A fence is the line above what makes it unique.
        mark = at.replace("``` start", f":name: {name}-start").replace("``` :", ":")
        number = next(n for n, line in enumerate(text.split("\n"), 1) if mark in line)
        lines[name] = number - (at.startswith("```"))
    done = fresh.prove("chapters", "-n", "2", "--dist", "loadfile")
    for name, (*_, says) in FAULTS.items():
        assert f"chapters/{name}.md:{lines[name]}: {says}" in done.stdout, (name, done.stdout)
    for name in ("death", "signal", "hang"):
        for id in ("use", "asks"):
            assert f"chapters/{name}.md::{name}-{id} - chapters/{name}.md:" in done.stdout
        assert ": did not run: the page's process" in done.stdout
    assert "chapters/b.md::other" in done.stdout and "FAILED chapters/b.md" not in done.stdout
    assert "FAILED chapters/a.md" not in done.stdout and "INTERNALERROR" not in done.stdout


def test_a_failure_in_a_tangled_file_ends_in_the_chapter(fresh):
    fresh.page(HEAD + LIBRARY.replace("environ['READ", "environ['RED"))
    fresh.run("literate", "tangle")
    done = fresh.prove("chapters/a.md::lib")
    assert "chapters/a.md:10: KeyError: 'RED_AT_START'" in done.stdout, done.stdout


def test_warnings_are_what_the_settings_make_of_them(fresh):
    fresh.page(HEAD + block("import warnings\nwarnings.warn('old', FutureWarning)", "name: warns"))
    fresh.run("literate", "tangle")
    assert fresh.prove("chapters/a.md").returncode == 0
    done = fresh.prove("chapters/a.md", "-o", "filterwarnings=error")
    assert "chapters/a.md:9: FutureWarning: old" in done.stdout, done.stdout
