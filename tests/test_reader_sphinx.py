"""What Sphinx shows as a code block is what the reader reads: the same texts, in order."""

from __future__ import annotations

import pickle

import pytest
from docutils import nodes

CONF = """\
    extensions = ["myst_parser", "literate.weave"]
    root_doc = "chapters/all"
    exclude_patterns = ["_build"]
    """
#: Pages on which a search for fences would go wrong. What starts with `hidden` is no code block.
PAGES = {
    "fences": """
~~~~{code-block} python
:name: tildes
a = "```"
~~~~

:::::{code-block} python
b = '''
:::
'''
:::::

```{Code-Block}   python   
---
name: yaml
timeout: 3
---
c = 1   # trailing blank lines follow


```
""",
    "containers": """
- item

  ```{code-block} python
  :name: in-a-list

  in_list = 1
  if in_list:
  \tin_list = 2
  ```

  1. > ```{code-block} python
     > quoted = 1
     >
     > twice = 2
     > ```

Term
:   ```{code-block} python
    defined = 1
    ```

:::aside
```{code-block} python
contained = 1
```
:::

::::::{admonition} With a `title`
:class: c

:::::{tip}
````{warning}
```{code-block} python
deep = 1
```
````
:::::
::::::

<details>

```{code-block} python
unfolded = 1
```

</details>
""",
    "hidden": """
````markdown
```{code-block} python
hidden = "display"
```
````

<!--
```{code-block} python
hidden = "comment"
```
-->

% ```{code-block} python

Of {num}`1 -> d` and `` {num}`2 -> d` `` and `` ```{code-block} ``.

```{code-block} text
shown = "after all"
```
""",
    "captions": """
```{code-block} python
:caption: A caption with {num}`3 -> d`
:linenos:
:emphasize-lines: 2
first = 1

# ::: and ``` and <!-- are only text here
```

```{code-block} python
first = 1

# ::: and ``` and <!-- are only text here
```
""",
}  # fmt: skip


@pytest.fixture(scope="module")
def woven(tmp_path_factory):
    from conftest import SmallBook

    book = SmallBook(tmp_path_factory.mktemp("a büok"))
    extensions = '["colon_fence", "deflist", "dollarmath"]'
    book.write("pyproject.toml", f"[tool.literate]\nextensions = {extensions}\n")
    book.write("conf.py", CONF)
    for name, text in PAGES.items():
        book.page(f"# {name}\n{text}", f"{name}.md")
    toctree = "\n".join(PAGES)
    book.page(f"# All\n\n```{{toctree}}\n{toctree}\n```\n", "all.md")
    done = book.run("sphinx", "-q", "-W", "--keep-going", "-b", "html", ".", "_build/html")
    assert done.returncode == 0, done.stderr
    return book


@pytest.mark.parametrize("name", PAGES)
def test_sphinx_shows_the_blocks_that_the_reader_reads(woven, name):
    path = woven.base / f"_build/html/.doctrees/chapters/{name}.doctree"
    doctree = pickle.loads(path.read_bytes())
    shown = [node for node in doctree.findall(nodes.literal_block) if node["language"] != "markdown"]
    page = woven.book().page(f"chapters/{name}.md")
    assert page.problems == ()
    assert [node.rawsource.rstrip("\n") for node in shown] == [b.text.rstrip("\n") for b in page.blocks]
    source = page.source.split("\n")
    for block in page.blocks:
        for number, line in enumerate(block.lines, block.code_line):
            assert line.strip() in source[number - 1]
    assert all("hidden" not in block.text for block in page.blocks)


def test_sphinx_evaluates_the_numbers_that_the_reader_reads(woven):
    from literate.weave.numbers import number

    for name, expected in (("hidden", 1), ("captions", 1)):
        path = woven.base / f"_build/html/.doctrees/chapters/{name}.doctree"
        doctree = pickle.loads(path.read_bytes())
        expressions = woven.book().page(f"chapters/{name}.md").expressions
        assert len(list(doctree.findall(number))) == len(expressions) == expected
