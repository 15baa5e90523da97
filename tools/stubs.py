"""Write the stubs of ``gradspec`` and ``gradspec.spec``, by which editors and type checkers know every public name.

    python tools/stubs.py

Names load when they are first used, and ``max_pool2d`` and the like are made of ``max_pool``, which a type checker does
not see. Operators take arrays of any kind, lists, numbers and variables, and return what they are given: a variable if
an operand is one, else a tensor of PyTorch or an array of JAX if one is, else a NumPy array. So every signature is
written for plain operands and for all others.

Installing gradspec runs this too (``hatch_build.py``), before its dependencies are there. So it imports the
specification, which has none, and reads the signatures of operators from their sources.
"""

import __future__

import ast
import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

import gradspec as gs
from gradspec.spec.ranked import ranked_names, ranked_operator

SOURCE = Path(__file__).parents[1] / "src"

HEAD = '''"""Written by tools/stubs.py, which says why."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from gradspec.spec.resize import Place
from gradspec.spec.scalar import Scalar
from gradspec.spec.tensor import TensorLike
from gradspec.spec.window import Ints, Padding
'''

TYPES = """
__version__: str

class _Shaped(Protocol):
    @property
    def shape(self) -> Any: ...

_A = TypeVar("_A", bound=_Shaped)
_Plain = float | np.generic | NDArray[Any] | Sequence[Any]
"""

OPERAND = re.compile(r"\b(?:Typed)?Operand\b")
RESULT = re.compile(r"\b(?:Any|Var)\b")


def stubs() -> dict[Path, str]:
    """The text of every stub, by its file."""
    package = SOURCE / "gradspec"
    return {package / "__init__.pyi": "\n".join(_library()), package / "spec" / "__init__.pyi": "\n".join(_spec())}


def _library() -> Iterator[str]:
    yield HEAD
    lazy = {**dict.fromkeys(gs._LAZY_MODULES, "gradspec"), **gs._LAZY, "spec": "gradspec"}
    yield from (_import(name, lazy.get(name, "gradspec.spec.errors")) for name in gs.__all__)
    operators: dict[str, Callable[..., Any]] = {}
    for statement in _parse("gradspec.library").body:
        if isinstance(statement, ast.ImportFrom) and (module := statement.module or "").startswith("gradspec"):
            names = [alias.name for alias in statement.names if not alias.asname]
            if module.startswith("gradspec.ops."):
                operators |= _functions(module, names)
            else:
                yield from (_import(name, module) for name in names)
    yield TYPES
    for name in ranked_names(gs.spec.RANKED, operators):
        operators[name] = ranked_operator(name, gs.spec.RANKED, operators)
    for operator in operators.values():
        operands = [p for p in inspect.signature(operator).parameters.values() if OPERAND.search(p.annotation)]
        several = (
            len(operands) > 1 or operands[0].annotation != "Operand" or operands[0].kind is Parameter.VAR_POSITIONAL
        )
        kinds = ("_Plain", "NDArray[Any]"), ("_A | _Plain" if several else "_A", "_A")
        yield from _overloads(operator, [_on(operator, *kind) for kind in kinds])


def _spec() -> Iterator[str]:
    yield HEAD
    made = [name for name in dir(gs.spec) if name not in gs.spec.__all__ or _returns_indices(getattr(gs.spec, name))]
    lists = ["OPERATORS", "RANKED"]
    for name in sorted(set(gs.spec.__all__) - {*made, *lists}):
        yield _import(name, getattr(gs.spec, name).__module__)
    yield from (f"{name}: tuple[str, ...]" for name in lists)
    for name in made:
        function = getattr(gs.spec, name)
        signature = inspect.signature(function)
        result = "Tensor" if _returns_indices(function) else signature.return_annotation
        yield from _overloads(function, [(signature, result)])


def _returns_indices(value: Any) -> bool:
    return inspect.isfunction(value) and "return_indices" in inspect.signature(value).parameters


def _import(name: str, module: str) -> str:
    return f"from {module} import {name} as {name}"


# --- sources ----------------------------------------------------------------------------------------------------------


def _parse(module: str) -> ast.Module:
    return ast.parse((SOURCE / module.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8"))


def _functions(module: str, names: list[str]) -> dict[str, Callable[..., Any]]:
    """Functions of a module that have its signatures and docstrings, made without importing it."""
    declared = [node for node in _parse(module).body if isinstance(node, ast.FunctionDef) and node.name in names]
    for node in declared:
        node.body, node.decorator_list = node.body[:1], []
    namespace: dict[str, Any] = {}
    code = compile(ast.Module(declared, []), module, "exec", flags=__future__.annotations.compiler_flag)
    exec(code, namespace)
    return {name: namespace[name] for name in names}


# --- signatures -------------------------------------------------------------------------------------------------------


def _on(operator: Callable[..., Any], taken: str, given: str) -> tuple[Signature, str]:
    """The signature, and the result, on operands of one kind."""
    signature = inspect.signature(operator)
    parameters = [_as_operand(p, taken) for p in signature.parameters.values()]
    return signature.replace(parameters=parameters), RESULT.sub(given, signature.return_annotation)


def _as_operand(parameter: Parameter, kind: str) -> Parameter:
    if not OPERAND.search(parameter.annotation):
        return parameter
    return parameter.replace(annotation=OPERAND.sub(kind, parameter.annotation))


def _overloads(function: Callable[..., Any], forms: list[tuple[Signature, str]]) -> Iterator[str]:
    written = [variant for variants in zip(*itertools.starmap(_variants, forms), strict=True) for variant in variants]
    for i, (parameters, result) in enumerate(written):
        mark = "@overload\n" if len(written) > 1 else ""
        body = f"\n    {_sentence(function)}\n" if i == 0 else " ...\n"
        yield f"{mark}def {function.__name__}({_parameters(parameters)}) -> {result}:{body}"


def _variants(signature: Signature, result: str) -> Iterator[tuple[list[Parameter], str]]:
    """The parameters with the result: once for each value of ``return_indices``, if the result depends on it."""
    parameters, both = list(signature.parameters.values()), f"tuple[{result}, {result}]"
    names = [p.name for p in parameters]
    if "return_indices" not in names:
        yield parameters, result
        return
    at = names.index("return_indices")
    before, flag, after = parameters[:at], parameters[at], parameters[at + 1 :]
    required = flag.replace(annotation="Literal[True]", default=Parameter.empty, kind=Parameter.KEYWORD_ONLY)
    yield [*before, flag.replace(annotation="Literal[False]"), *after], result
    yield [*before, required, *after], both
    yield parameters, f"{result} | {both}"


def _parameters(parameters: Iterable[Parameter]) -> str:
    """As ``inspect`` writes them, with the annotations, which are texts, as code."""

    class Code(str):
        __repr__ = str.__str__

    return str(Signature([p.replace(annotation=Code(p.annotation)) for p in parameters]))[1:-1]


def _sentence(function: Callable[..., Any]) -> str:
    """The first paragraph of what the function says of itself."""
    sentence = (inspect.getdoc(function) or "").split("\n\n")[0]
    return '"""' + sentence.replace("\\", "\\\\").replace("\n", "\n    ") + '"""'


def write() -> None:
    for file, text in stubs().items():
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
