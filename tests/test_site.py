"""The site shows what the code does: its figures, notebooks and reference are made from it."""

import json
import re
from xml.etree import ElementTree

import pytest

import figures
import gradspec as gs
import gradspec.testing
import notebooks
import recording
import reference_pages

# --- figures ----------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
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


# --- the recording ----------------------------------------------------------------------------------------------------

RECORDED = recording.RECORDING.read_text("utf-8")


def test_the_recording_is_small_loads_nothing_and_need_not_move():
    ElementTree.fromstring(RECORDED)
    assert len(RECORDED) < 60_000
    assert re.findall('https?://[^"]*|href|<image|<script|@import|url\\(', RECORDED) == ["http://www.w3.org/2000/svg"]
    assert "@media(prefers-reduced-motion:reduce)" in RECORDED


def test_what_is_recorded_is_what_the_judge_says(tmp_path):
    names = {}
    exec(recording.KERNEL, names)
    run = gs.conformance.check(names["max_pool2d"], cases=12, seed=3, dtypes=["f32"])
    finding = run.by_kind("defect")[0]
    shown = [
        " ".join(text.itertext()) for text in ElementTree.fromstring(RECORDED).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert f"$  {recording.CHECK}" in shown
    assert any(finding.title in line for line in shown)
    assert any(line.split() == ["got", finding.got] for line in shown)
    assert any(line.split() == ["expected", finding.expected] for line in shown)


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
    texts = [[output.get("text") or output["data"]["text/plain"] for output in cell["outputs"]] for cell in cells]
    assert texts == [[["<1>\n"], ["2"]], [], [["4\n"]], []]
    file.write_text(notebooks.written(notebooks.ran(file)))
    notebooks.require_current(file)


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
        notebooks.require_current(notebook(tmp_path / "a.ipynb", cell))


def test_a_notebook_is_written_as_it_was_read():
    assert [
        file for file in notebooks.NOTEBOOKS if notebooks.written(json.loads(file.read_text())) != file.read_text()
    ] == []


# --- the reference ----------------------------------------------------------------------------------------------------

PAGES = {
    page.file: "\n".join([text, *reference_pages.notes(page).values()])
    for page, text in zip(reference_pages.pages(), reference_pages.written().values(), strict=True)
}
ENTRY = re.compile(r'"heading": "(\w+)"|`(?=\w+`\{ #)(\w+)`')
LINK = re.compile(r"\[`(\w+)`\]\[")
MODULES = {"domains": gs.domains, "conformance": gs.conformance, "verify": gs.verify, "testing": gradspec.testing}


def entries(*names):
    pages = "\n".join(PAGES[f"reference/{name}.md"] for name in names)
    return [heading or beside for heading, beside in ENTRY.findall(pages)]


def test_every_name_of_gradspec_has_one_entry():
    assert sorted(entries("gradspec", "operators")) == sorted(dir(gs))


@pytest.mark.parametrize("name", ["spec", *MODULES])
def test_every_name_of_a_module_has_one_entry_or_is_described_with_gradspec(name):
    shared = LINK.findall(PAGES[f"reference/{name}.md"])
    offered = dir(gs.spec) if name == "spec" else MODULES[name].__all__
    assert sorted(entries(name) + shared) == sorted(offered)
    assert {*shared} <= {*dir(gs)}


def test_links_of_the_reference_lead_to_entries():
    links = re.findall(r"\]\[([\w.]+)\]", "\n".join([reference_pages.contents(), *PAGES.values()]))
    shown = re.findall(r"^::: ([\w.]+)$", "\n".join(PAGES.values()), re.MULTILINE)
    assert len(links) > 200
    assert {*links} <= {*shown}
    assert len({*shown}) == len(shown)


@pytest.mark.exhaustive
def test_names_of_fixed_rank_are_in_the_entry_of_their_operator():
    notes = {path: note for page in reference_pages.pages() for path, note in reference_pages.notes(page).items()}
    assert "`max_pool2d`{ #max_pool2d }" in notes["gradspec.ops.pool.max_pool"]
    assert notes.keys() <= {*re.findall(r"^::: ([\w.]+)$", "\n".join(PAGES.values()), re.MULTILINE)}


def test_private_members_are_left_out_by_the_filters():
    """mkdocstrings shows all members, private ones too, where an entry asks for members itself."""
    assert '"members": true' not in "\n".join(PAGES.values())
    assert '"members": false' in PAGES["reference/gradspec.md"]


def test_a_docstring_becomes_markdown():
    said = "See docs/verify.md, ``docs/onnx.md``.\n\n>>> 1\n1\n\nMore."
    expected = (
        "See [Proving properties of networks](../verify.md), [ONNX](../onnx.md).\n\n```pycon\n>>> 1\n1\n```\n\nMore."
    )
    assert reference_pages.markdown(said) == expected
