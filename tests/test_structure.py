"""The arrows between the parts, and what each part may do without."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
from conftest import ROOT

CODE = ROOT / "code"
#: Reading order: a later module may import an earlier one, never the reverse.
ORDER = """
hardware model microbench softmax matmul attention rope_rms_norm compiling profiling hunt
""".split()
LIGHT = [
    "roofline",
    "roofline.hardware",
    "roofline.model",
    "roofline.support.numbers",
    "roofline.support.record",
    "roofline.support.conditions",
    "roofline.support.figures",
    "literate.weave",
    "literate.cli",
]


def imports(path) -> set[str]:
    """The absolute names of every module that a file imports, wherever in it."""
    package = list(path.relative_to(CODE).with_suffix("").parts)[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            found |= {stem, *(f"{stem}.{alias.name}" for alias in node.names)}
    return found


def files(folder: str):
    return sorted((CODE / folder).rglob("*.py"))


def test_the_two_packages_do_not_know_each_other():
    for path in files("literate"):
        assert not any(name.split(".")[0] == "roofline" for name in imports(path)), path
    for path in files("roofline"):
        assert not any(name.split(".")[0] == "literate" for name in imports(path)), path


@pytest.mark.parametrize("part", ["tangle", "prove", "weave"])
def test_the_three_listeners_do_not_know_each_other(part):
    others = {f"literate.{name}" for name in ("tangle", "prove", "weave")} - {f"literate.{part}"}
    own = files(f"literate/{part}") or [CODE / f"literate/{part}.py"]
    for path in own:
        for name in imports(path):
            assert not any(name == other or name.startswith(other + ".") for other in others), path


def test_chapters_import_only_what_came_before():
    for index, name in enumerate(ORDER):
        path = CODE / f"roofline/{name}.py"
        if path.exists():
            later = {f"roofline.{other}" for other in ORDER[index + 1 :]}
            assert not later & imports(path), path


def test_weaving_needs_no_torch_triton_or_jax():
    blocked = "import sys; sys.modules.update(dict.fromkeys(('torch', 'triton', 'jax')));"
    program = blocked + "import " + ", ".join(LIGHT)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_nothing_hides_the_standard_library():
    """A package named `code` would hide the module that the debugger needs."""
    assert not (CODE / "__init__.py").exists()
    assert not (ROOT / "chapters/__init__.py").exists()


def test_the_top_level_stays_small():
    """What is not in the layout that the README describes does not belong here."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    assert {name.split("/")[0] for name in listed.stdout.split("\n") if name} <= {
        ".ci", ".gitignore", "CITATION.cff", "LICENSE", "Makefile", "README.md", "chapters", "code",
        "conf.py", "constraints.txt", "glossary", "pyproject.toml", "tests",
    }  # fmt: skip
