"""Calls as program text: what reproducers in every target's own API are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradspec.conformance.call import DTYPES, Array, Call

DTYPE_TEXT = {name: f"np.{dtype.name}" for name, dtype in DTYPES.items()} | {"bf16": "ml_dtypes.bfloat16"}


def literal(array: Array) -> str:
    """An expression that makes the array again, bit by bit but for the payloads of NaNs.

    >>> literal(np.float32([[1, np.nan], [-0.0, 0.1]]))
    'np.array([[1.0, np.nan], [-0.0, 0.1]], np.float32)'
    >>> literal(np.zeros((2, 0, 3), np.int64)), literal(np.full((4, 4), 0.5, np.float16))
    ('np.zeros((2, 0, 3), np.int64)', 'np.full((4, 4), 0.5, np.float16)')
    >>> literal(np.array([2.0**-1074]))
    'np.array([5.0e-324], np.float64)'
    """
    dtype = DTYPE_TEXT[next(name for name, known in DTYPES.items() if known == array.dtype)]
    if array.size == 0:
        return f"np.zeros({array.shape}, {dtype})"
    cells = [_number(cell) for cell in array.ravel()]
    if len(cells) > 4 and len({*cells}) == 1:
        return f"np.full({array.shape}, {cells[0]}, {dtype})"
    return f"np.array({_nested(cells, array.shape)}, {dtype})"


def _number(cell: Any) -> str:
    """The shortest decimal that reads back as the number in its own dtype."""
    if np.issubdtype(cell.dtype, np.integer):
        return str(int(cell))
    if not np.isfinite(cell):
        return {"nan": "np.nan", "inf": "np.inf", "-inf": "-np.inf"}[str(float(cell))]
    if cell.dtype in (np.float16, np.float32, np.float64):
        text = np.format_float_positional(cell, trim="0")
        return text if len(text) < 16 else np.format_float_scientific(cell, trim="0")
    return repr(float(cell))


def _nested(cells: list[str], shape: tuple[int, ...]) -> str:
    if not shape:
        return cells[0]
    step = len(cells) // shape[0]
    return "[" + ", ".join(_nested(cells[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])) + "]"


def keywords(attributes: Mapping[str, Any]) -> str:
    """Attributes as keyword arguments.

    >>> keywords({"kernel_size": (2,), "ceil_mode": True})
    'kernel_size=(2,), ceil_mode=True'
    """
    return ", ".join(f"{name}={value!r}" for name, value in attributes.items())


def arrays(call: Call) -> dict[str, Array]:
    """Every array of a call by the name that programs give it: ``x``, ``dx``, ``g``."""
    directions = zip(call.problem.differentiable, call.directions, strict=False)
    return {
        **call.named(),
        **{f"d{name}": array for name, array in directions},
        **({} if call.cotangent is None else {"g": call.cotangent}),
    }


def imports(call: Call, *more: str) -> list[str]:
    """The import lines of a program about a call: NumPy, what its dtype needs, and ``more``."""
    needed = ["import ml_dtypes"] if call.problem.dtype == "bf16" else []
    return [*needed, "import numpy as np", *more]


def assignments(call: Call) -> list[str]:
    """A line for each array of a call, and another where it does not lie contiguously in memory."""
    lines = []
    for name, array in arrays(call).items():
        lines.append(f"{name} = {literal(array)}")
        if layout := _layout(name, call.layout, array.ndim, call.problem.rank):
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
    return None
