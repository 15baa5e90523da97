"""Calls as program text, in every target's own API.

What a library is asked is written once, as its users would write it, and that text is both run and printed as the
reproducer: `function_of` makes a function of an expression, `routine` one of several lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gradspec.conformance.model.problem import ARRAY_DTYPES, Array, Call
from gradspec.conformance.model.target import ExpectedError
from gradspec.spec.errors import FormatError

DTYPE_TEXT = {name: f"np.{dtype.name}" for name, dtype in ARRAY_DTYPES.items()} | {"bf16": "ml_dtypes.bfloat16"}


# --- expressions and lines --------------------------------------------------------------------------------------------


class Code(str):
    """An expression: among arguments that are written by their ``repr`` it is written as it stands."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def applied(function: str, *arguments: Any, **settings: Any) -> Code:
    """A function, by its name, on literals and expressions.

    >>> applied("lax.max", Code("x"), (Code("-jnp.inf"), 2), axis=0)
    lax.max(x, (-jnp.inf, 2), axis=0)
    """
    return Code(f"{function}({', '.join(filter(None, [*map(repr, arguments), keywords(settings)]))})")


def keywords(attributes: Mapping[str, Any]) -> str:
    """Attributes as keyword arguments. Their names may come from a file, and are to stay names in what is run.

    >>> keywords({"kernel_size": (2,), "ceil_mode": True})
    'kernel_size=(2,), ceil_mode=True'
    """
    if strange := [name for name in attributes if not name.isidentifier()]:
        raise FormatError(f"attributes: {strange[0]!r} is not a name")
    return ", ".join(f"{name}={value!r}" for name, value in attributes.items())


def function_of(expression: str, names: Iterable[str], modules: Mapping[str, Any]) -> Callable[..., Any]:
    """An expression as a function of the variables that are named.

    >>> function_of(applied("max", Code("x"), 4), ["x"], {})(7)
    7
    """
    return evaluated(f"lambda {', '.join(names)}: {expression}", modules)  # type: ignore[no-any-return]


def scope_of(lines: Sequence[str], modules: Mapping[str, Any]) -> dict[str, Any]:
    """The names that lines define."""
    scope = dict(modules)
    exec(_compiled("\n".join(lines)), scope)
    return scope


def routine(
    lines: Sequence[str],
    names: Iterable[str],
    results: Iterable[str],
    modules: Mapping[str, Any],
    definitions: Sequence[str] = (),
) -> Callable[..., tuple[Any, ...]]:
    """Lines as a function of the variables that are named, which gives the results; what they define is made once.

    >>> routine(["y = 2 * x", "z = y + 1"], ["x"], ["y", "z"], {})(3)
    (6, 7)
    """
    body = "".join(f"    {line}\n" for line in (*lines, f"return {', '.join(results)},"))
    scope = scope_of([*definitions, f"def run({', '.join(names)}):\n{body}"], modules)
    return scope["run"]  # type: ignore[no-any-return]


def evaluated(expression: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression."""
    return eval(_compiled(expression, "eval"), dict(names))


@lru_cache(maxsize=1024)
def _compiled(text: str, kind: str = "exec") -> Any:
    return compile(text, "<reproducer>", kind)


# --- arrays -----------------------------------------------------------------------------------------------------------


LONG, FEW = 32, 6
"""Cells of an array that is told by its usual number and at most so many others."""


def literal(array: Array) -> str:
    """An expression that makes the array again, bit by bit but for the payloads of NaNs.

    >>> literal(np.float32([[1, np.nan], [-0.0, 0.1]]))
    'np.array([[1.0, np.nan], [-0.0, 0.1]], np.float32)'
    >>> literal(np.zeros((2, 0, 3), np.int64)), literal(np.full((4, 4), 0.5, np.float16))
    ('np.zeros((2, 0, 3), np.int64)', 'np.full((4, 4), 0.5, np.float16)')
    >>> literal(np.array([2.0**-1074]))
    'np.array([5.0e-324], np.float64)'
    """
    dtype = DTYPE_TEXT[next(name for name, known in ARRAY_DTYPES.items() if known == array.dtype)]
    if array.size == 0:
        return f"np.zeros({array.shape}, {dtype})"
    cells = [_number(cell) for cell in array.ravel()]
    if len(cells) > 4 and len({*cells}) == 1:
        return f"np.full({array.shape}, {cells[0]}, {dtype})"
    return f"np.array({nested(cells, array.shape)}, {dtype})"


def assigned(name: str, array: Array) -> list[str]:
    """The lines that make a variable of an array; of a long one with few different numbers, these one by one.

    >>> assigned("x", np.float32([1] * 40 + [2]))
    ['x = np.full((41,), 1.0, np.float32)', 'x[40] = 2.0']
    """
    if array.size <= LONG:
        return [f"{name} = {literal(array)}"]
    values, counts = np.unique(array, return_counts=True, equal_nan=False)
    usual = values[np.argmax(counts)]
    others = np.argwhere(array.view(f"V{array.itemsize}") != usual.reshape(1).view(f"V{array.itemsize}"))
    if len(others) > FEW:
        return [f"{name} = {literal(array)}"]
    cells = [f"{name}[{', '.join(map(str, place))}] = {_number(array[tuple(place)])}" for place in others.tolist()]
    return [f"{name} = {literal(np.full_like(array, usual))}", *cells]


def _number(cell: Any) -> str:
    """The shortest decimal that reads back as the number in its own dtype."""
    if cell.dtype.kind == "b":
        return str(bool(cell))
    if np.issubdtype(cell.dtype, np.integer):
        return str(int(cell))
    if not np.isfinite(cell):
        return {"nan": "np.nan", "inf": "np.inf", "-inf": "-np.inf"}[str(float(cell))]
    if cell.dtype in (np.float16, np.float32, np.float64):
        text = np.format_float_positional(cell, trim="0")
        return text if len(text) < 16 else np.format_float_scientific(cell, trim="0")
    return repr(float(cell))


def nested(cells: list[str], shape: tuple[int, ...]) -> str:
    """Cells as lists of lists."""
    if not shape:
        return cells[0]
    step = len(cells) // shape[0]
    return "[" + ", ".join(nested(cells[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])) + "]"


def imports(call: Call, *more: str) -> list[str]:
    """The import lines of a program about a call: NumPy, what its dtype needs, and ``more``."""
    needed = ["import ml_dtypes"] if call.problem.dtype == "bf16" else []
    return [*needed, "import numpy as np", *more]


def assignments(call: Call) -> list[str]:
    """A line for each array of a call, and another where it does not lie contiguously in memory."""
    lines = []
    for name, array in call.arrays().items():
        lines += assigned(name, array)
        if layout := _layout(name, call.layout, array.ndim, call.problem.rank_of(array.ndim)):
            lines.append(layout)
    return lines


def _layout(name: str, layout: str, ndim: int, rank: int) -> str | None:
    """The line that lays an array out as `laid_out` does."""
    if layout == "channels_last" and ndim > rank:
        channel = ndim - rank - 1
        moved = f"np.moveaxis({name}, {channel}, -1)"
        return f"{name} = np.moveaxis(np.ascontiguousarray({moved}), -1, {channel})  # channels last in memory"
    if layout == "non_contiguous" and ndim:
        spread = name
        for axis in range(ndim):
            spread = f"np.repeat({spread}, 2, {axis})"
        return f"{name} = {spread}[{', '.join(['::2'] * ndim)}]  # with gaps in memory"
    if layout == "reversed" and ndim:
        backwards = f"[{', '.join(['::-1'] * ndim)}]"
        return f"{name} = {name}{backwards}.copy(){backwards}  # backwards in memory: strides are negative"
    if layout == "cropped" and ndim:
        return f"{name} = np.pad({name}, 1)[{', '.join(['1:-1'] * ndim)}]  # a part of a larger array"
    if layout == "broadcast" and ndim > rank:
        return f"{name} = np.broadcast_to({name}[:1], {name}.shape)  # once in memory: a stride is 0"
    return None


Modules = Mapping[str, Any]


class ErrorRow(NamedTuple):
    """An expression that must raise: our operator, and what is documented."""

    op: str
    documented: str
    call: Code
    raises: tuple[type[Exception], ...] = (Exception,)

    def expected(self, imports: str, modules: Callable[[], Modules]) -> ExpectedError:
        source = f"{imports}\n\nprint({self.call})\n"
        return ExpectedError(self.op, lambda: evaluated(self.call, modules()), self.raises, source, self.documented)


def as_tuple(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, tuple | list) else (results,)
