"""Cheap truths about the repository: what its pages name exists, and what is said in two places agrees."""

import inspect
import re
import tomllib
from pathlib import Path

import pytest

import gradspec as gs

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(ROOT.glob("docs/*.md"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TEST_COMMAND = 'pip install -e ".[test]" && pytest'
DEMO_COMMAND = "pip install -e . && gradspec demo"

FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`[^`]+`")
LINK = re.compile(r"\]\(([^)\s]+)\)|\bsrc(?:set)?=\"([^\"\s]+)\"")
PATH = re.compile(r"(?:\.ci|benchmarks|docs|examples|src|tests)/[\w./-]*|[\w/-]+\.(?:py|md|toml|yml)\b")


def paths_in(page: str) -> set[str]:
    """The repository paths that a page's code names: below a folder of ours, or with one of our suffixes."""
    spans = SPAN.findall(FENCE.sub("", page))
    return {path for code in (*FENCE.findall(page), *spans) for path in PATH.findall(code)}


def links_in(page: str) -> set[str]:
    """The files that a page links to, or shows."""
    targets = ((link or shown).partition("#")[0] for link, shown in LINK.findall(FENCE.sub("", page)))
    return {target for target in targets if target and "://" not in target}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists(page):
    text = page.read_text()
    named = {path: ROOT / path for path in paths_in(text)} | {link: page.parent / link for link in links_in(text)}
    assert [name for name, path in named.items() if not path.exists()] == []


def test_paths_and_links_are_seen():
    page = "see `pytest tests/gone.py::name`, `x/y`, [a](docs/gone.md#part) and [b](https://c.d)\n```\nsrc/gone/\n```\n"
    page += '<img src="gone.svg">'
    assert paths_in(page) == {"tests/gone.py", "src/gone/"}
    assert links_in(page) == {"docs/gone.md", "gone.svg"}


def test_the_version_agrees():
    assert PROJECT["version"] == gs.__version__


def test_the_readme_gives_two_commands_and_ci_runs_the_second():
    readme = (ROOT / "README.md").read_text().splitlines()
    assert {TEST_COMMAND, DEMO_COMMAND} <= set(readme)
    assert TEST_COMMAND in (ROOT / ".ci" / "run").read_text().splitlines()


def test_the_extras_exist():
    extras = PROJECT["optional-dependencies"]
    assert {"torch", "jax", "onnx", "bench", "docs", "test"} <= set(extras)
    assert "torch==2.13.0" in extras["test"]


def test_the_site_shows_every_page():
    nav = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in ROOT.glob("docs/*.md") if f": {page.name}\n" not in nav] == []


PUBLIC = {
    f"{room.__name__}.{name}": getattr(room, name)
    for room in (gs.spec, gs.domains, gs.conformance)
    for name in room.__all__
}


@pytest.mark.parametrize("name", [name for name, thing in PUBLIC.items() if inspect.isfunction(thing)])
def test_a_public_function_has_an_example(name):
    assert ">>>" in PUBLIC[name].__doc__


@pytest.mark.parametrize("name", [name for name, thing in PUBLIC.items() if inspect.isclass(thing)])
def test_a_public_class_has_a_sentence(name):
    written = PUBLIC[name].__doc__
    assert written
    assert not written.startswith(f"{PUBLIC[name].__name__}(")  # what a dataclass writes by itself
