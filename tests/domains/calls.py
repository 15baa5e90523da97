"""Every operator in every mode as one table of calls, for laws that hold whatever the number system is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import settings

import gradspec as gs
from gradspec.spec.tensor import Tensor, tensor

patient = settings(deadline=None)  # a busy machine is no failure


@dataclass(frozen=True)
class Call:
    """A function of the specification, the shapes of its tensor arguments by name, and its other arguments."""

    function: str
    shapes: Mapping[str, tuple[int, ...]]
    options: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(f'{name}={value}' for name, value in self.options.items())})"

    def __call__(self, arguments: Mapping[str, Any]) -> list[Tensor]:
        result = getattr(gs.spec, self.function)(**arguments, **self.options)
        return [part for part in (result if isinstance(result, tuple) else (result,)) if part is not None]

    def arguments(self, cell: Callable[[], Any]) -> dict[str, Tensor]:
        """Tensors filled by calling ``cell``."""
        return {name: filled(shape, cell) for name, shape in self.shapes.items()}


def filled(shape: tuple[int, ...], cell: Callable[[], Any]) -> Tensor:
    size = 1
    for n in shape:
        size *= n
    return Tensor(shape, [cell() for _ in range(size)])


def cells(results: list[Tensor]) -> list[Any]:
    return [cell for result in results for cell in result.cells]


def modes(operator: str, inputs: Mapping[str, tuple[int, ...]], **options: Any) -> list[Call]:
    """The value, JVP and VJP of an operator; ``ties`` reaches the derivatives of a maximum."""
    value = Call(operator, inputs, options)
    output = value(value.arguments(lambda: 1.0))[0].shape
    tangents = {f"d{name}": shape for name, shape in inputs.items()}
    return [
        value,
        Call(f"{operator}_jvp", {**inputs, **tangents}, options),
        Call(f"{operator}_vjp", {**inputs, "g": output}, options),
    ]


PLANE = {"x": (2, 4, 3)}
WINDOW = {"kernel_size": (2, 2), "stride": (2, 1), "padding": ((1, 0), (0, 1))}
GROUPED = {"x": (4, 3, 3), "weight": (2, 2, 2, 2), "bias": (2,)}
TRANSPOSED = {"x": (4, 2, 3), "weight": (4, 1, 2, 2), "bias": (2,)}

MAXIMA = [
    call
    for ties in ("first", "all", "split")
    for call in (
        *modes("max_pool", PLANE, **WINDOW, dilation=(1, 2), ties=ties),
        *modes("adaptive_max_pool", PLANE, output_size=(3, 2), ties=ties),
        *modes("global_max_pool", PLANE, keepdims=False, ties=ties),
    )
]

AVERAGES = [
    *modes("avg_pool", PLANE, **WINDOW, ceil_mode=True),
    *modes("avg_pool", PLANE, **WINDOW, count_include_pad=False, dilation=(2, 1)),
    *modes("avg_pool", PLANE, **WINDOW, divisor_override=3),
    *modes("adaptive_avg_pool", PLANE, output_size=(3, 2)),
    *modes("global_avg_pool", PLANE, keepdims=False),
]

CONVOLUTIONS = [
    *modes("conv", GROUPED, stride=(1, 2), padding=((0, 1), (1, 1)), groups=2),
    *modes("conv", {"x": (2, 2, 5), "weight": (3, 2, 2), "bias": (3,)}, dilation=2),
    *modes("conv_transpose", TRANSPOSED, stride=(2, 1), padding=((1, 0), (0, 1)), output_padding=(1, 0), groups=2),
]

REARRANGEMENTS = [
    *modes("max_unpool", {"x": (2, 3)}, indices=[[0, 4, 4], [3, -1, 0]], output_size=(5,)),
    *modes("max_gather", {"x": (2, 5)}, indices=[[0, 4, 4], [3, -1, 0]], rank=1),
    *modes("unfold", {"x": (2, 3, 3)}, kernel_size=(2, 2), padding=1),
    *modes("fold", {"x": (8, 9)}, output_size=(4, 4), kernel_size=(2, 2)),
]

SMOOTH = [
    call
    for beta, padding_mode in ((2.0, "zeros"), (-0.5, "ignore"))
    for call in modes("smooth_max_pool", PLANE, **WINDOW, beta=beta, padding_mode=padding_mode)
]
SMOOTH_SECOND = [
    Call(
        "smooth_max_pool_jvp_jvp", {"x": (5,), "dx": (5,), "ex": (5,)}, {"kernel_size": (3,), "stride": 2, "beta": 1.5}
    ),
    Call(
        "smooth_max_pool_jvp_vjp", {"x": (5,), "dx": (5,), "g": (2,)}, {"kernel_size": (3,), "stride": 2, "beta": 1.5}
    ),
]

LINEAR = [*AVERAGES, *CONVOLUTIONS, *REARRANGEMENTS]
"""Calls that only add, multiply and divide by a constant."""

RATIONAL = [*MAXIMA, *LINEAR]
"""Calls that stay inside the rationals."""

TRANSCENDENTAL = [*SMOOTH, *SMOOTH_SECOND]
EVERY = [*RATIONAL, *TRANSCENDENTAL]


def each(calls: list[Call]) -> dict[str, Any]:
    """Keyword arguments of ``pytest.mark.parametrize`` for a table of calls."""
    return {"argnames": "call", "argvalues": calls, "ids": str}


def converted(arguments: Mapping[str, Tensor], convert: Callable[[Any], Any]) -> dict[str, Tensor]:
    return {name: tensor(data).map(convert) for name, data in arguments.items()}
