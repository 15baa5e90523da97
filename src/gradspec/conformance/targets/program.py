"""Calls as program text, in every target's own API.

What a library is asked is written once, as its users would write it, and that text is both run and printed as the
reproducer: `function_of` makes a function of an expression, `routine` one of several lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from gradspec.conformance.model.device import HOST, Device
from gradspec.conformance.model.problem import ARRAY_DTYPES, ON_NANS, Array, Call
from gradspec.conformance.model.target import ExpectedError
from gradspec.spec.errors import FormatError
from gradspec.system.hosting import HostedFunction

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
    return evaluate(f"lambda {', '.join(names)}: {expression}", modules)  # type: ignore[no-any-return]


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


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
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
    return f"np.array({nested_text(cells, array.shape)}, {dtype})"


def assignment_lines(name: str, array: Array) -> list[str]:
    """The lines that make a variable of an array; of a long one with few different numbers, these one by one.

    >>> assignment_lines("x", np.float32([1] * 40 + [2]))
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


def nested_text(cells: list[str], shape: tuple[int, ...]) -> str:
    """Cells as lists of lists."""
    if not shape:
        return cells[0]
    step = len(cells) // shape[0]
    return "[" + ", ".join(nested_text(cells[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])) + "]"


def imports(call: Call, *more: str) -> list[str]:
    """The import lines of a program about a call: NumPy, what its dtype needs, and ``more``."""
    needed = ["import ml_dtypes"] if call.problem.dtype == "bf16" else []
    return [*needed, "import numpy as np", *more]


def assignments(call: Call) -> list[str]:
    """A line for each array of a call, and another where it does not lie contiguously in memory."""
    lines = []
    for name, array in call.arrays().items():
        lines += assignment_lines(name, array)
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
        return ExpectedError(self.op, lambda: evaluate(self.call, modules()), self.raises, source, self.documented)


def as_tuple(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, tuple | list) else (results,)


# --- kernels of users in each library ---------------------------------------------------------------------------------


ENTERED = {
    "numpy": "{}",
    "torch": "torch.from_numpy({})",
    "jax": "jnp.asarray({})",
    "cupy": "cupy.asarray({})",
}
ARRAYS = tuple(ENTERED)
"""The libraries whose arrays a kernel may take."""
"""An array of NumPy as one of the library."""
_BFLOAT16 = "torch.from_numpy({}.view(np.int16)).view(torch.bfloat16)"
IMPORTS = {
    "numpy": (),
    "torch": ("import torch",),
    "jax": ("import jax", "import jax.numpy as jnp"),
    "cupy": ("import cupy",),
}

HOSTED_MODULES = {
    "torch": [("torch", "torch")],
    "jax": [("jax", "jax"), ("jnp", "jax.numpy")],
}
"""What the lines name, by the modules that it is."""
BARE = ("numpy", "cupy")
"""Libraries without derivatives: a kernel brings its own."""
_GRADIENTS = [
    "def gradients(y, x, g, **more):",
    "    found = torch.autograd.grad(y, x, g, allow_unused=True, **more)",
    "    return tuple(torch.zeros_like(t) if part is None else part for part, t in zip(found, x))",
]
"""Of a function that may not depend on all of its inputs."""

_ON_NANS = [
    f"def {ON_NANS}(*arrays):",
    "    torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty is full of NaNs then",
    "    try:",
    "        return {}(*arrays)",
    "    finally:",
    "        torch.use_deterministic_algorithms(False)",
]


@dataclass(frozen=True)
class Caller:
    """The function of one mode of a kernel, in the arrays of a library.

    ``floats`` are the places of the inputs that have derivatives, ``of`` the result that is differentiated, if the
    kernel gives several. With ``on_nans``, ``torch.empty`` is full of NaNs meanwhile.
    """

    array: str
    mode: str
    inputs: int
    floats: tuple[int, ...]
    of: int | None = None
    on_nans: bool = False

    @staticmethod
    def of_call(array: str, call: Call) -> Caller:
        problem = call.problem
        floats = tuple(map(problem.inputs.index, problem.differentiable))
        several = problem.interface.of if len(problem.interface.values) > 1 else None
        return Caller(array, call.mode, len(problem.inputs), floats, several, call.variant == ON_NANS)

    @property
    def lines(self) -> list[str]:
        """The definition of the function, in terms of ``kernel``."""
        return [*self._plain(), *(line.format(self._plain_name) for line in _ON_NANS if self.on_nans)]

    def _plain(self) -> list[str]:
        if self.mode == "value" or self.array in BARE:  # whose derivatives come with the kernel
            return []
        return self._torch() if self.array == "torch" else self._jax()

    @property
    def _result(self) -> str:
        return "" if self.of is None else f"[{self.of}]"

    def _split(self) -> list[str]:
        return [
            f"    x, more = list(arrays[:{self.inputs}]), arrays[{self.inputs}:]",
            f"    floats = {list(self.floats)}",
        ]

    def _torch(self) -> list[str]:
        if self.mode == "jvp":
            return [
                "def jvp(*arrays):",
                *self._split(),
                "    def of_floats(*moved):",
                "        for i, t in zip(floats, moved):",
                "            x[i] = t",
                f"        return kernel(*x){self._result}",
                "    return torch.func.jvp(of_floats, tuple(x[i] for i in floats), more)[1]",
            ]
        head = [
            f"def {self.mode}(*arrays):",
            *self._split(),
            "    for i in floats:",
            "        x[i] = x[i].detach().requires_grad_()",
            "    points = [x[i] for i in floats]",
        ]
        if self.mode == "vjp":
            return [*head, f"    return gradients(kernel(*x){self._result}, points, more[0])", *_GRADIENTS]
        return [
            *head,
            "    g = more[0].detach().requires_grad_()",
            f"    first = gradients(kernel(*x){self._result}, points, g, create_graph=True)",
            "    total = sum((part * v).sum() for part, v in zip(first, more[1:]))",
            "    known = [*points, g]",
            "    found = torch.autograd.grad(total, known, allow_unused=True) if total.requires_grad else ()",
            "    if all(part is None for part in found):  # a gradient depends on its cotangent, at least",
            "        raise NotImplementedError('its backward pass is not differentiable')",
            "    return tuple(torch.zeros_like(t) if part is None else part for part, t in zip(found, known))",
            *_GRADIENTS,
        ]

    def _jax(self) -> list[str]:
        head = [
            f"def {self.mode}(*arrays):",
            *self._split(),
            "    def of_floats(*moved):",
            "        every = list(x)",
            "        for i, t in zip(floats, moved):",
            "            every[i] = t",
            f"        return kernel(*every){self._result}",
            "    points = [x[i] for i in floats]",
        ]
        if self.mode == "vjp":
            return [*head, "    return jax.vjp(of_floats, *points)[1](more[0])"]
        if self.mode == "jvp":
            return [*head, "    return jax.jvp(of_floats, points, list(more))[1]"]
        return [
            *head,
            "    def pulled(*moved):",
            "        return jax.vjp(of_floats, *moved[:-1])[1](moved[-1])",
            "    return jax.vjp(pulled, *points, more[0])[1](tuple(more[1:]))",
        ]

    @property
    def name(self) -> str:
        """What the function is called that takes the arrays."""
        return ON_NANS if self.on_nans else self._plain_name

    @property
    def _plain_name(self) -> str:
        if self.mode == "value" or self.array not in BARE:
            return "kernel" if self.mode == "value" else self.mode
        return f"kernel_{self.mode}"

    def function(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """The function itself."""
        if not self.lines:
            return kernel
        if isinstance(kernel, HostedFunction):
            return kernel.within(lines=self.lines, name=self.name, modules=HOSTED_MODULES[self.array])
        found: Callable[..., Any] = scope_of(self.lines, {**modules_of(self.array), "kernel": kernel})[self.name]
        return found


def entered(array: str, name: str, dtype: str, device: Device = HOST) -> str:
    """The expression that makes an array of the library, on a device, of one of NumPy."""
    text = (_BFLOAT16 if (array, dtype) == ("torch", "bf16") else ENTERED[array]).format(name)
    return device.entered(text, array)


def modules_of(array: str) -> dict[str, Any]:
    """The modules that the lines name."""
    if array == "torch":
        import torch

        return {"torch": torch, "np": np}
    if array == "jax":
        import jax
        import jax.numpy as jnp

        return {"jax": jax, "jnp": jnp, "np": np}
    if array == "cupy":
        return {"cupy": import_module("cupy"), "np": np}
    return {"np": np}


def named_results(call: Call, given: Any) -> dict[str, Any]:
    """What a function returned, by the names of the results; None stands for what it does not give."""
    names, parts = call.problem.results(call.mode), as_tuple(given)
    if len(parts) != len(names):
        meant = f"{len(names)} {'is' if len(names) == 1 else 'are'} meant: {', '.join(names)}"
        raise TypeError(f"{len(parts)} results were returned; {meant}. Return None for what is not given")
    return {name: part for name, part in zip(names, parts, strict=True) if part is not None}


def program(call: Call, array: str, definitions: Sequence[str], device: Device = HOST) -> str:
    """A program that calls ``kernel``, which the definitions make, in a mode."""
    caller = Caller.of_call(array, call)
    moved = list(map(call.problem.direction, call.problem.differentiable)) if call.directions else []
    names = [*call.named(), *[call.problem.cotangent] * (call.cotangent is not None), *moved]
    dtypes = {name: call.problem.dtype if name not in call.named() else call.problem.dtype_of(name) for name in names}
    given = ", ".join(entered(array, name, dtypes[name], device) for name in names)
    shown = f"{caller.name}({given})"
    if (array, call.problem.dtype) == ("torch", "bf16"):  # which NumPy has no name for
        is_one = call.mode == "jvp" or (len(call.problem.results(call.mode)) == 1 and call.mode == "value")
        shown = f"{shown}.float()" if is_one else f"tuple(part.float() for part in {shown})"
    head = [*imports(call, *IMPORTS[array]), *definitions, *caller.lines]
    return "\n".join([*(line for line in head if line), "", *assignments(call), f"print({shown})"])
