"""What machines read of a woven book, with an address and without one."""

from __future__ import annotations

import tomllib
from xml.etree import ElementTree

import pytest
import yaml
from conftest import ROOT


@pytest.mark.parametrize("base", ["", "https://books.example/clock/"])
def test_previews_and_a_sitemap_where_there_is_an_address_and_a_list_always(small, base):
    small.page("# A clock & its hands\n\nThis page counts the seconds of a day, one after another.\n",
               "clock.md")  # fmt: skip
    small.write("index.md", "# Book\n\n```{toctree}\nchapters/clock\n```\n")
    small.write("conf.py", 'project = "Clocks"\nextensions = ["myst_parser", "literate.weave"]\n')
    made = small.run("sphinx", "-q", "-b", "html", "-D", f"html_baseurl={base}", ".", "out")
    assert made.returncode == 0, made.stderr
    page = (small.base / "out/chapters/clock.html").read_text("utf-8")
    said = (small.base / "out/llms.txt").read_text("utf-8")
    assert said.startswith("# Clocks\n")
    here = f"[A clock & its hands]({base}chapters/clock.html): This page counts the seconds"
    assert here in said
    sitemap = small.base / "out/sitemap.xml"
    assert sitemap.exists() == bool(base)
    assert ('property="og:title" content="A clock &amp; its hands"' in page) == bool(base)
    assert (f'<link rel="canonical" href="{base}chapters/clock.html"' in page) == bool(base)
    if base:
        assert f'property="og:url" content="{base}chapters/clock.html"' in page
        places = [e.text for e in ElementTree.parse(sitemap).iter() if e.tag.endswith("loc")]
        assert places == [f"{base}index.html", f"{base}chapters/clock.html"]


def test_the_citation_names_this_book_and_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert cited["cff-version"] == "1.2.0" and cited["authors"] and cited["message"]
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])
    assert project["description"].startswith(cited["title"])
