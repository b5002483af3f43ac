"""The book as plain text, `sphinx -b text`: every node of the harness has words for it."""

from __future__ import annotations

CONF = """\
    extensions = ["myst_parser", "literate.weave", "sphinx_exercise"]
    root_doc = "chapters/a"
    exclude_patterns = ["_build"]
    numfig = True
    """
PAGE = """\
    # Page

    ```{code-block} python
    :name: half
    :tangle: names.py
    from contextlib import contextmanager
    from types import SimpleNamespace

    found = []


    @contextmanager
    def collect_sources():
        found.clear()
        yield found


    def weighed(kilograms):
        found.append(SimpleNamespace(kind="measured", text="by `weigh --twice`"))
        return kilograms
    ```

    It weighs {num}`weighed(2) -> d` kg.

    :::{exercise} Halves
    :label: ex-halves
    What is half of *that*?
    :::

    :::{answer} kg
    {num}`1 + 0 -> d`
    :::

    :::{exercise} Open
    :label: ex-open
    :nonumber:
    And why?
    :::

    :::{widget} dial
    It stands still.
    :::

    ```{code-block} python
    :name: line
    :figure: A line that rises.
    :alt: A straight line through the origin.
    from matplotlib.figure import Figure
    figure = Figure()
    figure.subplots().plot([0, 1])
    ```
    """


def test_a_book_is_plain_text_too(small):
    small.write("pyproject.toml", '[tool.literate]\nnamespace = "names"\n')
    small.write("conf.py", CONF)
    small.page(PAGE)
    small.run("literate", "tangle")
    done = small.run("sphinx", "-q", "-W", "-n", "-b", "text", ".", "_build/text")
    assert done.returncode == 0, done.stderr
    text = (small.base / "_build/text/chapters/a.txt").read_text("utf-8")
    said = " ".join(text.split())
    assert "It weighs 2[1] kg." in said
    assert '[1] Measured: by "weigh --twice"' in said  # as one types it
    assert "  Exercise 1 (Halves):\n\n  What is half of *that*?\n" in text
    assert "  Exercise (Open):\n\n  And why?\n" in text
    assert "It stands still." in said and "A straight line through the origin." in said
    assert "A line that rises." in said
