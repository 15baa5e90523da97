"""Write the stubs of ``gradspec`` and ``gradspec.spec``, by which editors and type checkers know every public name.

    python tools/stubs.py

Names load when they are first used, and ``max_pool2d`` and the like are made of ``max_pool``, which a type checker does
not see. Operators take arrays of any kind, lists, numbers and variables, and return what they are given: a variable if
an operand is one, else a tensor of PyTorch or an array of JAX if one is, else a NumPy array. So every signature is
written for plain operands and for all others.
"""

import inspect
import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

import gradspec as gs

PACKAGE = Path(__file__).parents[1] / "src" / "gradspec"

HEAD = '"""Written by tools/stubs.py, which says why."""\n'

IMPORTS = """
from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from gradspec.spec.resize import Place
from gradspec.spec.scalar import Scalar
from gradspec.spec.tensor import TensorLike
from gradspec.spec.window import Ints, Padding
"""

TYPES = """
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
    return {PACKAGE / "__init__.pyi": _formatted(_library()), PACKAGE / "spec" / "__init__.pyi": _formatted(_spec())}


def _library() -> Iterator[str]:
    yield from (HEAD, IMPORTS)
    names = [name for name in dir(gs) if name != "__version__"]
    operators = [name for name in names if _is_operator(getattr(gs, name))]
    for name in sorted(set(names) - set(operators)):
        yield _imported(name, getattr(gs, name))
    yield TYPES
    yield "__version__: str"
    for name in operators:
        operator = getattr(gs, name)
        operands = [p for p in inspect.signature(operator).parameters.values() if OPERAND.search(p.annotation)]
        several = (
            len(operands) > 1 or operands[0].annotation != "Operand" or operands[0].kind is Parameter.VAR_POSITIONAL
        )
        kinds = ("_Plain", "NDArray[Any]"), ("_A | _Plain" if several else "_A", "_A")
        yield from _overloads(operator, [_on(operator, *kind) for kind in kinds])


def _spec() -> Iterator[str]:
    yield from (HEAD, IMPORTS)
    made = [name for name in dir(gs.spec) if name not in gs.spec.__all__ or _returns_indices(getattr(gs.spec, name))]
    lists = ["OPERATORS", "RANKED"]
    for name in sorted(set(gs.spec.__all__) - {*made, *lists}):
        yield _imported(name, getattr(gs.spec, name))
    yield from (f"{name}: tuple[str, ...]" for name in lists)
    for name in made:
        function = getattr(gs.spec, name)
        signature = inspect.signature(function)
        result = "Tensor" if _returns_indices(function) else signature.return_annotation
        yield from _overloads(function, [(signature, result)])


def _is_operator(value: Any) -> bool:
    return inspect.isfunction(value) and value.__module__.startswith("gradspec.ops.")


def _returns_indices(value: Any) -> bool:
    return inspect.isfunction(value) and "return_indices" in inspect.signature(value).parameters


def _imported(name: str, value: Any) -> str:
    """A name imported from where it is defined, so that editors lead there."""
    return f"from {'gradspec' if inspect.ismodule(value) else value.__module__} import {name} as {name}"


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


def _formatted(parts: Iterable[str]) -> str:
    text = "\n".join(parts)
    for command in (["check", "--quiet", "--select", "I,F401", "--fix"], ["format"]):
        run = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(PACKAGE / "__init__.pyi"), "-"]
        text = subprocess.run(run, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    for file, text in stubs().items():
        file.write_text(text)
        print(f"{file.relative_to(PACKAGE.parents[1])}: {len(text.splitlines())} lines")
