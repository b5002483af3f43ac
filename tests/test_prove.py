"""Blocks as tests: what runs, where it fails, what a failure says."""

from __future__ import annotations

import pytest

PAGE = """\
    # Page

    ```{code-block} python
    :name: library
    :tangle: tiny/lib.py
    def half(x):
        <<divide>>
    ```

    ```{code-block} python
    :name: divide
    :fragment: divide
    return x / 2
    ```

    ```{code-block} python
    :name: make
    import inspect
    import pickle

    def twice(x):
        return 2 * x

    class Box:
        value = 1

    kept = half(6)
    ```

    Half of six is {num}`6 / 2 -> .1f`.

    ```{code-block} python
    :name: use
    assert kept == 3
    assert pickle.loads(pickle.dumps(twice))(2) == 4
    assert inspect.getsource(twice) == "def twice(x):\\n    return 2 * x\\n"
    assert inspect.getsource(Box).startswith("class Box")
    print("kept", kept, 1 / 3)
    ```

    ```{code-block} text
    :output: 0.01
    kept 3.0 0.333
    ```

    ```{code-block} python
    :name: shown
    :display-only: it would take a week
    forever()
    ```
    """


@pytest.fixture
def proved(small):
    small.page(PAGE)
    assert small.run("literate", "tangle").returncode == 0
    return small


def test_a_sound_page_passes_and_says_what_it_skips(proved):
    done = proved.prove("chapters")
    assert done.returncode == 0, done.stdout
    assert "6 passed, 1 skipped" in done.stdout
    assert "display only: it would take a week" in done.stdout
    for name in ("census", "library", "divide", "make", "use"):
        assert f"chapters/a.md::{name} PASSED" in done.stdout


def test_one_block_runs_alone(proved):
    done = proved.prove("chapters/a.md::use")
    assert done.returncode == 0 and "1 passed" in done.stdout


#: What is changed into what, the text at whose line that must be seen, and what is said.
FAULTS = {
    "operator in chapter code": ("kept == 3", "kept != 3", "kept != 3", "AssertionError"),
    "operator in a tangled block": ("x / 2", "x // 2 + 1", "x // 2", "is stale"),
    "fragment name": ("<<divide>>", "<<divied>>", "<<divied>>", "no fragment is called"),
    "number expression": ("6 / 2 ->", "six / 2 ->", "six / 2", "NameError"),
    "number without a format": ("6 / 2 -> .1f", "6 / 2", "six is", "not of the form"),
    "expected output": ("kept 3.0", "kept 3.1", "``` text", "prints something else"),
    "number outside its tolerance": ("0.333", "0.35", "``` text", "prints something else"),
    "untagged Python block": (
        "```{code-block} python\n    :name: shown", "```python", "```python", "Python in a plain",
    ),
    "missing reason": (": it would take a week", ":", "``` shown", "a few words"),
    "unknown option": (":name: make", ":nam: make", "``` nam", "unknown option"),
    "syntax error": ("kept = half(6)", "kept = half(6", "kept = half(6", "SyntaxError"),
    "error inside a function": ("    return 2 * x\n\n", "    return 2 * z\n\n", "2 * z", "NameError"),
    "deleted line": ("kept = half(6)\n", "\n", "assert kept == 3", "NameError"),
}  # fmt: skip
#: Fences, which are the line above what makes them unique.
FENCES = {"``` text": ":output:", "``` shown": ":name: shown", "``` nam": ":nam: make"}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_turns_the_page_red_at_its_line(proved, fault):
    old, new, at, says = FAULTS[fault]
    assert PAGE.count(old) == 1
    changed = PAGE.replace(old, new)
    proved.page(changed)
    lines = changed.split("\n")
    line = next(n for n, text in enumerate(lines, 1) if FENCES.get(at, at) in text) - (at in FENCES)
    done = proved.prove("chapters")
    assert done.returncode == 1
    assert f"chapters/a.md:{line}: " in done.stdout and says in done.stdout, done.stdout


def test_a_failure_in_a_tangled_file_ends_in_the_chapter(small):
    small.page(PAGE.replace("x / 2", "x / zero"))
    small.run("literate", "tangle")
    done = small.prove("chapters")
    assert done.returncode == 1
    assert 'code/tiny/lib.py", line 5' in done.stdout
    assert "chapters/a.md:13: NameError: name 'zero' is not defined" in done.stdout


def test_a_stale_file_is_caught_even_where_no_block_stands(proved):
    with (proved.base / "code/tiny/lib.py").open("a") as file:
        file.write("extra = 1\n")
    done = proved.prove("chapters")
    assert "goes on after the book's last line" in done.stdout


def test_assertions_are_explained(proved):
    proved.page(PAGE.replace("kept == 3", "kept == 4"))
    assert "assert 3.0 == 4" in proved.prove("chapters").stdout


def test_a_block_that_hangs_is_stopped(small):
    small.page("```{code-block} python\n:name: slow\n:timeout: 1\nimport time\ntime.sleep(60)\n```\n")
    done = small.prove("chapters")
    assert done.returncode == 1 and "Timeout" in done.stdout


def test_an_unmet_condition_is_a_skip_with_its_reason(small):
    small.write("pyproject.toml", '[tool.literate]\nconditions = "conditions"\n')
    small.write("code/conditions.py", "CONDITIONS = {'moon': ('a moon', lambda: (1, 2))}\n")
    text = "```{code-block} python\n:name: n\n:requires: moon>=1.3\n1 / 0\n```\n"
    small.page(text)
    environment_path = small.run("pytest", "-ra", "-p", "no:cacheprovider", "chapters")
    assert "needs moon>=1.3, and here it is 1.2" in environment_path.stdout
    small.page(text.replace("1.3", "1.2"))
    assert "ZeroDivisionError" in small.prove("chapters").stdout


def test_a_markdown_file_outside_the_book_is_left_alone(proved):
    proved.write("notes.md", "```python\n1 / 0\n```\n")
    assert "no tests ran" in proved.prove("notes.md").stdout


def test_a_figure_block_uses_nothing_of_its_chapter(small):
    page = """\
        ```{code-block} python
        :name: first
        x = 1
        ```

        ```{code-block} python
        :name: drawn
        :figure: A line.
        :alt: A straight line.
        from matplotlib.figure import Figure
        figure = Figure()
        figure.subplots().plot([0, {0}])
        ```
        """
    small.page(page.replace("{0}", "1"))
    assert small.prove("chapters").returncode == 0
    small.page(page.replace("{0}", "x"))
    done = small.prove("chapters")
    assert "chapters/a.md:12: NameError" in done.stdout
    small.page(page.replace("{0}", "1").replace("figure = Fig", "drawn = Fig").replace("figure.sub", "drawn.sub"))
    assert "leaves no matplotlib figure" in small.prove("chapters").stdout


@pytest.mark.parametrize(
    ("want", "have", "same"),
    [
        ("a 1.0", "a 1.0000001", True),
        ("a 1.0", "a 1.1", False),
        ("a ... c", "a b\nb c", True),
        ("a 1", "a 1 2", False),
        ("nan -inf", "nan -inf", True),
        ("1e-3", "0.001", True),
        ("a  \nb", "a\nb\n", True),
        ("x1", "x2", False),
    ],
)
def test_expected_output_compares_numbers_as_numbers(want, have, same):
    from literate.prove.output import difference

    assert (difference(want, have, 1e-6) is None) == same


def block(code: str, *options: str, language: str = "python") -> str:
    return f"```{{code-block}} {language}\n" + "".join(f":{o}\n" for o in options) + code + "\n```\n\n"


#: Pages on which something goes wrong in a way of its own, and what the last line then says.
HOSTILE = {
    "broken": (
        block("x = 1\ny = (", "tangle: tiny/broken.py", "name: lib"),
        "chapters/broken.md:5: SyntaxError: '(' was never closed",
    ),
    "leaves": (block("import sys\nsys.exit(0)", "name: exits"), "chapters/leaves.md:4: SystemExit: 0"),
    "circle": (block("e = ValueError('a')\nraise e from e"), "chapters/circle.md:3: ValueError: a"),
    "mute": (
        block("class E(Exception):\n    def __str__(self): raise OSError\nraise E"),
        "chapters/mute.md:4: E: (its message cannot be printed)",
    ),
    "caption": (
        block("x = 1", "name: n", "caption: Of {num}`1 + -> d`"),
        "chapters/caption.md:3: {num}`1 + -> d`: SyntaxError",
    ),
    "absent": (
        block("z = 1", "requires: moon", "name: needs") + block("z"),
        "(an earlier block did not run: chapters/absent.md:1)",
    ),
    "stale": (
        block("z = 1", "tangle: tiny/stale.py", "requires: moon"),
        "chapters/stale.md:4: code/tiny/stale.py:4 is stale",
    ),
    "latin": ("\udcff", "chapters/latin.md:1: not UTF-8"),
}
#: Pages that ask for much and are right.
SOUND = {
    "a-moves": block(
        "import os, sys\nassert os.path.isfile('pyproject.toml')\nos.chdir('/')\nos.environ['LEAK'] = '1'\nsys.path.insert(0, 'leak')"
    ),
    "b-stays": block(
        "import os, sys\nassert os.path.isfile('pyproject.toml')\nassert 'LEAK' not in os.environ and 'leak' not in sys.path"
    ),
    "split": block("try:\n    import json as j\nfinally:\n    pass\nclass A:\n    x = 1", "tangle: tiny/split.py")
    + block("    def f(self):\n        return 2", "tangle: tiny/split.py", "name: census")
    + block("assert A().f() == 2 and j.dumps(1) == '1'"),
    "pickle": block("import pickle\nclass A: pass\npickle.loads(pickle.dumps(A()))"),
    "inspects": block("def deco(f):\n    return f\n\n\n@deco\ndef g(\n    x,\n):\n    return x")
    + block(
        "import inspect\nlines, at = inspect.getsourcelines(g)\nassert lines == ['@deco\\n', 'def g(\\n', '    x,\\n', '):\\n', '    return x\\n']\nassert at == 6"
    ),
}  # fmt: skip


def test_whatever_goes_wrong_is_said_at_its_line_and_nothing_leaks(small, tmp_path_factory):
    small.write("pyproject.toml", '[tool.literate]\nconditions = "conditions"\n')
    small.write("code/conditions.py", "CONDITIONS = {'moon': ('a moon', lambda: None)}\n")
    pages = {**{name: text for name, (text, _) in HOSTILE.items()}, **SOUND}
    for name, text in pages.items():
        if name != "latin":
            small.page(text, f"{name}.md")
    assert small.run("literate", "tangle").returncode == 0
    stale = small.base / "code/tiny/stale.py"
    stale.write_text(stale.read_text().replace("z = 1", "z = 2"))
    (small.base / "chapters/latin.md").write_bytes(b"\xff\n")
    # Another book with a page and a module of the same names, in the same run.
    other = type(small)(tmp_path_factory.mktemp("an öther"))
    other.write("pyproject.toml", '[tool.literate]\nconditions = "conditions"\n')
    other.write("code/conditions.py", "CONDITIONS = {'moon': ('a moon', lambda: True)}\n")
    other.page(SOUND["pickle"], "pickle.md")
    other.page(block("1", "requires: moon"), "conditions.md")
    done = small.prove("chapters", str(other.base / "chapters"), "--rootdir", str(small.base))
    for name, (_, says) in HOSTILE.items():
        assert says in done.stdout, (name, done.stdout)
    for name in SOUND:
        assert f"FAILED chapters/{name}.md" not in done.stdout, done.stdout
    assert "conditions is imported from" in done.stdout
    assert "pickle.md" not in done.stdout.split("short test summary")[1]
