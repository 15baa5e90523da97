"""The pages of the API reference, which say what mkdocstrings puts there: a hook of mkdocs and an extension of griffe.

An object has one entry. What a module shares with ``gs`` has it there, ``max_pool2d`` and the like are in that of
``max_pool``, and dtypes in that of ``DType``.
"""

import inspect
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import gradspec as gs
import gradspec.testing

try:
    from griffe import Extension
except ImportError:  # it comes with mkdocstrings, which the tests do without
    Extension = object

DOCS = Path(__file__).parents[1] / "docs"
RANKED = re.compile(r"[123]d(?=_|$)")


@dataclass(frozen=True)
class Page:
    """Some names of a module."""

    title: str
    opening: str
    module: ModuleType
    names: list[str]

    @cached_property
    def own(self) -> list[str]:
        """The names that have their entry on this page."""
        gs_names = set() if self.module is gs else {*dir(gs)}
        return [n for n in self.names if n not in gs_names or getattr(gs, n) is not getattr(self.module, n)]

    @property
    def file(self) -> str:
        return f"reference/{self.title.removeprefix('gradspec.').lower()}.md"


def pages() -> list[Page]:
    operators = {name for name in dir(gs) if _is_operator(getattr(gs, name))}
    others = [name for name in dir(gs) if name not in operators]
    modules = gs.domains, gs.conformance, gs.verify, gs.referee, gradspec.testing
    return [
        Page("gradspec", "All names of `import gradspec as gs`, except [operators](operators.md).", gs, others),
        Page("Operators", OPERATORS, gs, sorted(operators)),
        *(_page_of(module, names) for module, names in [(gs.spec, dir(gs.spec)), *((m, m.__all__) for m in modules)]),
    ]


def _page_of(module: ModuleType, names: list[str]) -> Page:
    return Page(module.__name__, inspect.getdoc(module) or "", module, names)


OPERATORS = """Operators of `gs` work on arrays, lists and numbers, and on the variables of a function that is traced.
They return NumPy arrays, or what they are given: PyTorch tensors, JAX arrays, variables. The names for one, two and
three spatial axes also take an int where the others take one for each axis.
[What every operator means](../semantics.md) states the rules."""


def _is_operator(value: Any) -> bool:
    return inspect.isfunction(value) and value.__module__.startswith("gradspec.ops.")


# --- hooks ------------------------------------------------------------------------------------------------------------


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for file, content in written().items():
        files.append(File.generated(config, file, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return f"{markdown}\n\n{contents()}" if page.file.src_uri == "reference.md" else markdown


def written() -> dict[str, str]:
    """The Markdown of every page, by its file."""
    return {page.file: "\n\n".join(_page(page)) for page in pages()}


def contents() -> str:
    """All names, linked to their entries."""
    return "\n\n".join(f"## [{page.title}]({page.file})\n\n{_links(page.own, page.module)}" for page in pages())


def _links(names: Iterable[str], module: ModuleType) -> str:
    """Links to entries, which mkdocs-autorefs finds on whatever page they are."""
    return ", ".join(f"[`{name}`][{_path(name, module)}]" for name in names if not RANKED.search(name))


# --- a page -----------------------------------------------------------------------------------------------------------


def _page(page: Page) -> Iterator[str]:
    yield from (f"# {page.title}", markdown(page.opening))
    if shared := sorted({*page.names} - {*page.own}):
        yield f"The module also has {_links(shared, gs)}."
    for name in page.own:
        if not _is_beside(name, page):
            yield from _entry(name, page)


def _is_beside(name: str, page: Page) -> bool:
    """Whether a name is in another's entry: an operator of fixed rank, or a dtype."""
    return RANKED.sub("", name) in {*page.own} - {name} or isinstance(getattr(page.module, name), gs.DType)


def _entry(name: str, page: Page) -> Iterator[str]:
    path, value = _path(name, page.module), getattr(page.module, name)
    has_members = inspect.isclass(value) or not _is_builtin(value)
    options = {"heading": name, "toc_label": name, "show_attribute_values": not has_members}
    if not has_members:  # true would show private members as well, whatever the filters say
        options["members"] = False
    yield f"::: {path}\n    options: {json.dumps(options)}"
    if inspect.ismodule(value):
        yield f"[{path}]({name}.md) has its names."


def notes(page: Page) -> dict[str, str]:
    """What entries say besides docstrings, by the path of the object: the names that have no entry of their own."""
    texts = {}
    for name in page.own:
        if beside := [other for other in page.own if other != name and RANKED.sub("", other) == name]:
            texts[_path(name, page.module)] = f"For one, two and three spatial axes: {_anchors(beside)}."
        elif getattr(page.module, name) is gs.DType:
            dtypes = [other for other in page.own if isinstance(getattr(gs, other), gs.DType)]
            texts[_path(name, page.module)] = f"The dtypes are {_anchors(dtypes)}."
    return texts


def _path(name: str, module: ModuleType) -> str:
    """Where an object is defined; of one that is neither function nor class, its class."""
    value = getattr(module, name)
    if _is_builtin(value) and not callable(value):
        return f"{module.__name__}.{name}"
    definition = value if inspect.isfunction(value) or inspect.isclass(value) else type(value)
    return f"{definition.__module__}.{definition.__qualname__}"


def _is_builtin(value: Any) -> bool:
    """Whether it is a number, text, function, module and so on."""
    return type(value).__module__ == "builtins"


def _anchors(names: list[str]) -> str:
    return ", ".join(f"`{name}`{{ #{name} }}" for name in names)


# --- docstrings -------------------------------------------------------------------------------------------------------


class Docstrings(Extension):
    """What mkdocstrings shows of docstrings."""

    def __init__(self) -> None:
        self.notes = {path: note for page in pages() for path, note in notes(page).items()}

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = f"{markdown(obj.docstring.value)}\n\n{self.notes.get(obj.path, '')}"


def markdown(docstring: str) -> str:
    """Examples become blocks of code, and paths of pages become links; the rest of a docstring is Markdown."""
    blocks = docstring.split("\n\n")
    shown = [f"```pycon\n{block}\n```" if block.startswith(">>>") else block for block in blocks]
    return re.sub(r"`*docs/(\w+\.md)`*", lambda found: f"[{_title(found[1])}](../{found[1]})", "\n\n".join(shown))


def _title(page: str) -> str:
    return (DOCS / page).read_text().partition("\n")[0].removeprefix("# ")
