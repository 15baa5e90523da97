"""The site shows what the code does: its figures, notebooks and reference are made from it."""

import json
import re

import pytest

import figures
import gradspec as gs
import gradspec.testing
import notebooks
import reference_pages

# --- figures ----------------------------------------------------------------------------------------------------------


def test_the_figures_are_those_that_are_drawn_now():
    """If not: ``python tools/figures.py``."""
    assert [file.name for file, text in figures.figures().items() if file.read_text() != text] == []
    assert sorted(figures.figures()) == sorted(figures.FIGURES.glob("*.svg"))


def test_figures_and_the_style_sheet_have_the_same_colours():
    style = (figures.FIGURES.parent / "site.css").read_text()
    light, dark = (re.findall(r"--(\w+): (#\w+);", part) for part in style.split("}")[:2])
    assert light == list(zip(figures.NAMES, figures.LIGHT, strict=True))
    assert dark == list(zip(figures.NAMES, figures.DARK, strict=True))


def test_a_figure_is_part_of_its_page_and_leaves_colours_to_it():
    shown = figures.on_page_content('<p>a</p>\n<p><img alt="b" src="../figures/plan.svg" /></p>')
    assert shown.startswith('<p>a</p>\n<figure class="drawn"><svg')
    assert "<style>" not in shown


def test_of_two_pictures_the_page_shows_the_one_for_its_mode():
    both = (
        '<picture>\n<source media="(prefers-color-scheme: dark)" srcset="d.svg">\n<img src="l.svg" alt="a">\n</picture>'
    )
    assert re.findall('src="(.*?)"', figures.on_page_content(both)) == ["l.svg#only-light", "d.svg#only-dark"]


def test_a_page_has_the_styles_that_the_switch_of_modes_sets():
    assert re.findall(' id="(.*?)"', figures.on_post_page("<html>\n<head>\n</head>")) == ["hljs-light", "hljs-dark"]


# --- notebooks --------------------------------------------------------------------------------------------------------


def notebook(path, *cells):
    """A file with these cells of code, which stores no outputs."""
    heading = {"cell_type": "markdown", "source": ["# Title\n", "\n", "Text."]}
    code = [{"cell_type": "code", "source": [cell], "outputs": [], "execution_count": None} for cell in cells]
    path.write_text(notebooks.written({"cells": [heading, *code]}))
    return path


def test_a_notebook_prints_and_shows_its_last_values(tmp_path):
    file = notebook(tmp_path / "a.ipynb", "x = 2\nprint('<1>')\nx", "y = x", "print(x + y)", "None")
    _, *cells = notebooks.ran(file)["cells"]
    assert [[notebooks._text(output) for output in cell["outputs"]] for cell in cells] == [
        ["<1>\n", "2"],
        [],
        ["4\n"],
        [],
    ]
    file.write_text(notebooks.written(notebooks.ran(file)))
    page = notebooks.page(file.name, notebooks.checked(file))
    assert page.startswith(
        "# Title\n\n*This page is a notebook, run: [a.ipynb](a.ipynb).*\n\nText.\n\n```python\nx = 2\n"
    )
    assert '<pre class="output"><code>&lt;1&gt;</code></pre>' in page


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("print(1)", r"stores other outputs(.|\n)*\+.*1\\n"),
        ("1 / 0", "ZeroDivisionError"),
        ("import warnings\nwarnings.warn('old')", "UserWarning: old"),
    ],
)
def test_a_notebook_that_does_not_do_what_it_stores_is_refused(tmp_path, cell, said):
    with pytest.raises(ValueError, match=said):
        notebooks.checked(notebook(tmp_path / "a.ipynb", cell))


def test_links_to_notebooks_lead_to_pages():
    assert notebooks.on_page_markdown("[a](notebooks/a.ipynb), [b](a.ipynb)") == "[a](notebooks/a.md), [b](a.ipynb)"


def test_a_notebook_is_written_as_it_was_read():
    assert [
        file for file in notebooks.NOTEBOOKS if notebooks.written(json.loads(file.read_text())) != file.read_text()
    ] == []


# --- the reference ----------------------------------------------------------------------------------------------------

PAGES = reference_pages.written()
ENTRY = re.compile(r"(?:^## `|`(?=\w+`\{ #))(\w+)`", re.MULTILINE)
LINK = re.compile(r"\[`(\w+)`\]\(gradspec\.md#")
MODULES = {"domains": gs.domains, "conformance": gs.conformance, "verify": gs.verify, "testing": gradspec.testing}


def test_every_name_of_gradspec_has_one_entry():
    assert sorted(ENTRY.findall(PAGES["reference/gradspec.md"] + PAGES["reference/operators.md"])) == sorted(dir(gs))


@pytest.mark.parametrize("name", ["spec", *MODULES])
def test_every_name_of_a_module_has_one_entry_or_is_described_with_gradspec(name):
    page = PAGES[f"reference/{name}.md"]
    offered = dir(gs.spec) if name == "spec" else MODULES[name].__all__
    assert sorted(ENTRY.findall(page) + LINK.findall(page)) == sorted(offered)
    assert {*LINK.findall(page)} <= {*dir(gs)}


def test_links_of_the_reference_lead_to_entries():
    links = re.findall(r"\((reference/\w+\.md)#(\w+)\)", reference_pages.contents())
    assert len(links) > 200
    assert [link for link in links if link[1] not in ENTRY.findall(PAGES[link[0]])] == []


def test_signatures_are_code_and_examples_are_blocks():
    page = PAGES["reference/operators.md"]
    entry = page[page.index("## `max_pool` {") : page.index("## `max_unpool` {")]
    assert "\n    return_indices: bool = False,\n    *,\n    ties: str = 'first',\n) -> Any\n```" in entry
    assert "\n```pycon\n>>> import numpy as np\n" in entry
    assert "`max_pool2d`{ #max_pool2d }" in entry


def test_no_signature_names_an_object_by_its_address():
    assert [line for page in PAGES.values() for line in page.splitlines() if " at 0x" in line or "<class" in line] == []


def test_a_docstring_becomes_markdown():
    said = "See docs/verify.md, ``docs/onnx.md``.\n\n>>> 1\n1\n\nMore."
    expected = (
        "See [Proving properties of networks](../verify.md), [ONNX](../onnx.md).\n\n```pycon\n>>> 1\n1\n```\n\nMore."
    )
    assert reference_pages.markdown(said) == expected
