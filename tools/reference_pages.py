"""The pages of the API reference, from the signatures and docstrings of the public names: a hook of mkdocs.

An object has one entry. What a module shares with ``gs`` has it there, ``max_pool2d`` and the like are in that of
``max_pool``, and dtypes in that of ``DType``.
"""

import functools
import inspect
import pprint
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from types import ModuleType
from typing import Any

import gradspec as gs
import gradspec.testing

DOCS = Path(__file__).parents[1] / "docs"
RANKED = re.compile(r"[123]d(?=_|$)")
WIDTH = 88


@dataclass(frozen=True)
class Page:
    """Some names of a module."""

    title: str
    opening: str
    module: ModuleType
    names: list[str]

    @property
    def own(self) -> list[str]:
        """The names that have their entry on this page."""
        return [name for name in self.names if self.module is gs or not _is_shared(self.module, name)]

    @property
    def file(self) -> str:
        return f"reference/{self.title.removeprefix('gradspec.').lower()}.md"


def pages() -> list[Page]:
    operators = {name for name in dir(gs) if _is_operator(getattr(gs, name))}
    others = [name for name in dir(gs) if name not in operators]
    modules = gs.domains, gs.conformance, gs.verify, gradspec.testing
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


def _is_shared(module: ModuleType, name: str) -> bool:
    return name in dir(gs) and getattr(gs, name) is getattr(module, name)


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
    return "\n\n".join(f"## [{page.title}]({page.file})\n\n{_links(page.own, page.file)}" for page in pages())


def _links(names: Iterable[str], file: str) -> str:
    return ", ".join(f"[`{name}`]({file}#{name})" for name in names if not RANKED.search(name))


# --- a page -----------------------------------------------------------------------------------------------------------


def _page(page: Page) -> Iterator[str]:
    yield from (f"# {page.title}", markdown(page.opening))
    if shared := sorted({*page.names} - {*page.own}):
        yield f"The module also has {_links(shared, 'gradspec.md')}."
    found = {name: getattr(page.module, name) for name in page.own}
    for name in found:
        if not _is_beside(name, found):
            yield from _entry(name, found)


def _is_beside(name: str, found: dict[str, Any]) -> bool:
    """Whether a name is in another's entry: an operator of fixed rank, or a dtype."""
    return RANKED.sub("", name) in found.keys() - {name} or isinstance(found[name], gs.DType)


def _entry(name: str, found: dict[str, Any]) -> Iterator[str]:
    value = found[name]
    yield f"## `{name}` {_anchor(name)}"
    if inspect.ismodule(value):
        yield f"{_sentence(value)} See [{value.__name__}]({name}.md)."
        return
    if not callable(value) and type(value).__module__ == "builtins":
        yield f"```python\n{pprint.pformat(value, width=WIDTH, compact=True, sort_dicts=False)}\n```"
        return
    if beside := [other for other in found if other != name and RANKED.sub("", other) == name]:
        yield f"For one, two and three spatial axes: {_anchors(beside)}."
    yield from _described(name, value)
    if value is gs.DType:
        yield f"The dtypes are {_anchors([other for other in found if isinstance(found[other], gs.DType)])}."
    if inspect.isclass(value):
        yield from _members(name, value)


def _anchors(names: list[str]) -> str:
    return ", ".join(f"`{name}`{_anchor(name)}" for name in names)


def _anchor(name: str) -> str:
    """The name as the target of links. ``__version__``, where it would be bold, is one without."""
    return "" if name.startswith("__") else f"{{ #{name} }}"


def _members(owner: str, cls: type) -> Iterator[str]:
    """Methods and properties; those that say nothing of themselves are named."""
    found = {name: inspect.getattr_static(cls, name) for name in dir(cls) if not name.startswith("_")}
    found = {name: value for name, value in found.items() if _is_member(value)}
    for name, value in found.items():
        if inspect.getdoc(value):
            yield f"### `{owner}.{name}` {_anchor(f'{owner}.{name}')}"
            yield from _described(name, getattr(cls, name) if not _is_property(value) else value)
    if silent := [f"`{name}`" for name, value in found.items() if not inspect.getdoc(value)]:
        yield f"`{owner}` also has {', '.join(silent)}."


def _is_member(value: Any) -> bool:
    return inspect.isfunction(value) or isinstance(value, classmethod | staticmethod) or _is_property(value)


def _is_property(value: Any) -> bool:
    return isinstance(value, property | functools.cached_property)


def _described(name: str, value: Any) -> Iterator[str]:
    if signature := _signature(name, value):
        yield f"```python\n{signature}\n```"
    yield markdown(inspect.getdoc(value) or "")


def _sentence(value: Any) -> str:
    return markdown((inspect.getdoc(value) or "").split("\n\n")[0])


# --- signatures and docstrings ----------------------------------------------------------------------------------------


class _Code(str):
    """A text that stands for code, as annotations do."""

    __repr__ = str.__str__

    @classmethod
    def of(cls, annotation: Any) -> "_Code":
        return cls(annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))


def _signature(name: str, value: Any) -> str | None:
    """A call, on one line if it fits; None for what is not called."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return None
    parameters = [_plain(p) for p in signature.parameters.values() if p.name != "self"]
    result = signature.return_annotation
    arrow = "" if inspect.isclass(value) or result is Parameter.empty else f" -> {_Code.of(result)}"
    line = f"{name}{inspect.Signature(parameters)}{arrow}"
    return line if len(line) <= WIDTH else f"{name}(\n{''.join(_rows(parameters))}){arrow}"


def _rows(parameters: list[Parameter]) -> Iterator[str]:
    """One parameter on each line, and the star before those that are given by name."""
    may_need_star = all(p.kind is not Parameter.VAR_POSITIONAL for p in parameters)
    for parameter in parameters:
        if may_need_star and parameter.kind is Parameter.KEYWORD_ONLY:
            may_need_star = False
            yield "    *,\n"
        yield f"    {parameter},\n"


def _plain(parameter: Parameter) -> Parameter:
    """With its annotation as code, and without defaults that are no code."""
    if parameter.annotation is not Parameter.empty:
        parameter = parameter.replace(annotation=_Code.of(parameter.annotation))
    is_code = parameter.default is Parameter.empty or not repr(parameter.default).startswith("<")
    return parameter if is_code else parameter.replace(default=_Code("..."))


def markdown(docstring: str) -> str:
    """Examples become blocks of code, and paths of pages become links; the rest of a docstring is Markdown."""
    blocks = docstring.split("\n\n")
    shown = [f"```pycon\n{block}\n```" if block.startswith(">>>") else block for block in blocks]
    return re.sub(r"`*docs/(\w+\.md)`*", lambda found: f"[{_title(found[1])}](../{found[1]})", "\n\n".join(shown))


def _title(page: str) -> str:
    return (DOCS / page).read_text().partition("\n")[0].removeprefix("# ")
