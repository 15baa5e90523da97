"""Cheap truths about the repository: what its pages name exists, and what is said in two places agrees."""

import inspect
import re
import tomllib
from pathlib import Path

import pytest

import gradspec as gs

ROOT = Path(__file__).parents[1]
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
PAGES = [*map(ROOT.joinpath, TOP), *sorted(ROOT.glob("docs/*.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TEST_COMMAND = 'pip install -e ".[test]" && pytest'
DEMO_COMMAND = "pip install -e . && gradspec demo"

FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`[^`]+`")
LINK = re.compile(r"\]\(([^)\s]+)\)|\bsrc(?:set)?=\"([^\"\s]+)\"")
PATH = re.compile(r"(?:\.ci|benchmarks|docs|examples|src|tests|tools)/[\w./-]*|\.?[\w/-]+\.(?:py|md|toml|yml)\b")


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


def test_the_version_is_written_once():
    assert "version" in PROJECT["dynamic"]
    assert "version" not in PROJECT


def test_the_readme_gives_two_commands_and_ci_runs_the_second():
    readme = (ROOT / "README.md").read_text().splitlines()
    assert {TEST_COMMAND, DEMO_COMMAND} <= set(readme)
    assert TEST_COMMAND in (ROOT / ".ci" / "run").read_text().splitlines()


def test_the_extras_exist():
    extras = PROJECT["optional-dependencies"]
    assert {"torch", "jax", "onnx", "gpu", "bench", "docs", "test"} <= set(extras)
    assert "torch==2.13.0" in extras["test"]


def test_the_site_shows_every_page_in_the_order_of_the_index():
    shown = re.findall(r": ([\w/]+)\.(?:md|ipynb)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    index = (ROOT / "docs" / "index.md").read_text().partition("## Start")[2]
    listed = re.findall(r"^- \[.*?\]\(([\w/]+)\.", index, re.MULTILINE)
    listed_elsewhere = re.compile(r"reference/|findings/(?!index)")
    assert [page for page in shown if not listed_elsewhere.match(page)] == ["index", *listed]
    kinds = ("*.md", "notebooks/*.ipynb", "findings/index.md")
    pages = [path.relative_to(ROOT / "docs") for kind in kinds for path in ROOT.glob(f"docs/{kind}")]
    assert {str(page.with_suffix("")) for page in pages} == {"index", *listed}


PUBLIC = {
    f"{package.__name__}.{name}": getattr(package, name)
    for package in (gs.spec, gs.domains, gs.conformance)
    for name in package.__all__
}


@pytest.mark.parametrize("name", [name for name, thing in PUBLIC.items() if inspect.isfunction(thing)])
def test_a_public_function_has_an_example(name):
    assert ">>>" in PUBLIC[name].__doc__


@pytest.mark.parametrize("name", [name for name, thing in PUBLIC.items() if inspect.isclass(thing)])
def test_a_public_class_has_a_sentence(name):
    written = PUBLIC[name].__doc__
    assert written
    assert not written.startswith(f"{PUBLIC[name].__name__}(")  # what a dataclass writes by itself


# --- what several files say ------------------------------------------------------------------------------------------

CITATION = (ROOT / "CITATION.cff").read_text()
WORKFLOW = (ROOT / ".github" / "workflows" / "test.yml").read_text()
REPOSITORY = PROJECT["urls"]["Source"]


def test_the_version_is_cited():
    assert f"\nversion: {gs.__version__}\n" in CITATION


def test_one_address_is_given_for_the_repository():
    assert f"\nrepository-code: {REPOSITORY}\n" in CITATION
    assert f"<{REPOSITORY}/security>" in (ROOT / "SECURITY.md").read_text()
    assert all(url.startswith(REPOSITORY) for url in PROJECT["urls"].values())


def test_the_changelog_is_by_version():
    """The newest comes first, each with its date; what is not released yet stands above them."""
    titles = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert titles[0] == "[Unreleased]"
    released = [re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - \d{4}-\d\d-\d\d", title) for title in titles[1:]]
    assert all(released), titles
    numbers = [tuple(map(int, match.groups())) for match in released]
    assert numbers == sorted(set(numbers), reverse=True)


def test_the_hosted_workflow_runs_the_test_command_on_pythons_that_are_allowed():
    assert f"run: {TEST_COMMAND}\n" in WORKFLOW
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert f'python: ["{oldest}"' in WORKFLOW


def test_extras_say_a_thing_once():
    """Apart from PyTorch, of which the tests need one version: what others bring, the tests' extra only refers to."""
    extras = PROJECT["optional-dependencies"]
    names = {extra: {re.split(r"[<>=\[]", entry)[0] for entry in entries} for extra, entries in extras.items()}
    others = set().union(*(names[extra] for extra in extras if extra != "test"))
    assert names["test"] & others <= {"torch", "gradspec"}
    assert "gradspec[torch,jax,onnx,bench,gpu,lint]" in extras["test"]


def test_what_is_used_by_private_names_has_an_upper_bound():
    private = re.compile(r"\b(torch|jax)\.(?:\w+\.)*_[a-z]\w+|from (jax)\.extend")
    source = "\n".join(file.read_text() for file in (ROOT / "src" / "gradspec").rglob("*.py"))
    used = {name for match in private.finditer(source) for name in match.groups() if name}
    assert used == {"torch", "jax"}
    assert [name for name in used if "<" not in PROJECT["optional-dependencies"][name][0]] == []


def test_the_recipe_asks_for_what_the_package_asks_for():
    recipe = (ROOT / "recipe" / "recipe.yaml").read_text()
    assert f'version: "{gs.__version__}"' in recipe
    run = recipe.partition("  run:\n")[2].partition("\n\n")[0]
    asked = {line.strip(" -").replace(" ", "") for line in run.splitlines()}
    assert asked == {*PROJECT["dependencies"], f"python{PROJECT['requires-python']}"}


def test_a_release_is_built_as_ci_tries_it():
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert "run: .ci/wheel\n" in workflow
    assert "\n.ci/wheel\n" in (ROOT / ".ci" / "run").read_text()


# --- the paper --------------------------------------------------------------------------------------------------------

PAPER, BIBLIOGRAPHY = ((ROOT / "paper" / name).read_text("utf-8") for name in ("paper.md", "paper.bib"))


def test_citations_of_the_paper_are_in_its_bibliography():
    entries = re.findall(r"^@\w+\{(\w+),$", BIBLIOGRAPHY, re.MULTILINE)
    assert len(entries) == len({*entries})
    assert {*re.findall(r"\[@(\w+)\]", PAPER)} == {*entries}


def test_the_paper_has_a_thousand_words():
    _, front, text = PAPER.split("---\n", 2)
    assert "\nbibliography: paper.bib\n" in front
    assert 750 <= len(text.split()) <= 1100


def test_counts_in_the_paper_are_those_of_the_pages():
    peers = (ROOT / "docs" / "peers.md").read_text("utf-8")
    table = re.findall(r"^\| \[([\w.]+)\]\(#\w+\) \| .*? \| ([\d,]+) \| (\d+) \|", peers, re.MULTILINE)
    defects = {target: number for target, _, number in table}
    for target, said in {
        "torch": "58 defects",
        "onnxruntime": "26 in",
        "onnx.reference": "20 in",
        "jax": "5 in",
    }.items():
        assert said.split()[0] == defects[target]
        assert said in PAPER
    benchmarks = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    assert all("104 of 106 problems" in page for page in (PAPER, benchmarks))
