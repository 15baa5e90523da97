"""All operators by name, and the core: operators that no others are made of.

A backend, an importer or an exporter must know these, and may know more where that pays: a fused kernel, or another
library's operator of exactly that meaning. Every other operator's record says how it decomposes.

Decompositions are exact: on real numbers, values and all derivatives are those of the operator. So in the core is what
no graph says exactly (a factor that no format holds, or the π of a density), what has no derivative to copy (a
quantisation refuses one, ``detach`` ends one), what chooses by order or by index, and the functions that others would
give with fewer digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

import gradspec.ops
from gradspec.graph.ir import Attributes, Op, Var
from gradspec.graph.types import bf16, f16, f32
from gradspec.ops.convert import convert

CORE = (
    *("reshape", "broadcast_to", "transpose", "concat", "slice", "pad"),
    *("gather_rows", "scatter_add_rows", "scatter_rows", "top_places"),
    *("neg", "add", "mul", "div", "trunc_divide", "scale", "sum", "cumsum", "matmul"),
    *("bitwise_and", "left_shift", "right_shift"),
    *("greater", "equal", "where", "maximum"),
    *("exp", "log", "sqrt", "tanh", "sin", "cos", "atan", "erf", "normal_density", "abs_power"),
    *("round", "convert", "quantize", "detach", "resize", "resize_transpose"),
)


def decomposed(op: Op, attrs: Attributes, operands: Sequence[Var]) -> tuple[Var, ...]:
    """The results of an operator, made of others.

    float16 and bfloat16 are computed with in float32 and rounded once, as kernels do it; but each node of a composite
    operator is rounded.
    """
    if op.decompose is None:
        raise op.missing("decomposition", "it is of the core")
    if op.is_composite:
        return op.decompose(attrs, *operands)
    wide = [convert(v, f32) if v.dtype in (f16, bf16) else v for v in operands]
    types = op.types(attrs, *(v.type for v in operands))
    results = op.decompose(attrs, *wide)
    return tuple(convert(y, t.dtype) for y, t in zip(results, types, strict=True))


# --- all operators by name --------------------------------------------------------------------------------------------


def _defined_in(module: ModuleType) -> Iterator[Op]:
    """The operators among a module's names, alone or in tables."""
    for value in vars(module).values():
        candidates = (
            value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
        )
        yield from (v for v in candidates if isinstance(v, Op))


@cache
def operators() -> dict[str, Op]:
    """Every operator by its name.

    >>> operators()["sum"]
    sum
    """
    found: dict[str, Op] = {}
    for info in iter_modules(gradspec.ops.__path__, "gradspec.ops."):
        if info.name != __name__:
            for op in _defined_in(import_module(info.name)):
                if found.setdefault(op.name, op) is not op:
                    raise RuntimeError(f"two operators are called {op.name!r}; a saved graph could mean either")
    return found
