"""The table of operators that the reader knows: a name of PyTorch's, and the function of variables that does the same.

A function takes what PyTorch's operator takes, in the same order and under the same names, with variables for tensors.
It is found by the operator's name, ``conv2d``, or by that of one overload, ``max.dim``; outside ``torch.ops.aten`` the
name begins with that of the library, ``gradspec::graph``. The argument ``wanted``, if it has one, is the set of the
results that the model uses, by position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Signature, signature
from typing import Any, TypeVar

import numpy as np
import torch
from torch import fx

from gradspec.graph.ir import Var
from gradspec.graph.types import DType
from gradspec.interop.torch.private import OpOverload
from gradspec.interop.torch.types import gradspec_dtype, torch_dtype
from gradspec.ops.convert import convert
from gradspec.ops.pointwise import scale

Function = Callable[..., Any]
Read = TypeVar("Read", bound=Function)


@dataclass(frozen=True)
class AtenEntry:
    """One function of the table, and whether it writes its result over its first operand."""

    function: Function
    signature: Signature
    in_place: bool = False

    @property
    def chooses_results(self) -> bool:
        return "wanted" in self.signature.parameters


_ENTRIES: dict[str, AtenEntry] = {}


def reads(*names: str) -> Callable[[Read], Read]:
    """Register a function for operators or overloads; ``{1,2,3}`` in a name stands for each of the three."""

    def register(function: Read) -> Read:
        for name in names:
            for rank in "123" if "{1,2,3}" in name else "-":
                _ENTRIES[name.replace("{1,2,3}", rank)] = AtenEntry(function, signature(function))
        return function

    return register


def reads_each(rows: Mapping[str, Function]) -> None:
    """Register the functions of a table; several names of one function are separated by spaces."""
    for names, function in rows.items():
        reads(*names.split())(function)


def entry_of(node: fx.Node) -> AtenEntry | None:
    """The entry for a node's operator, if it is there and takes the node's arguments."""
    entry = entry_for(node.target)
    return entry if entry and _takes(entry, node) else None


def entry_for(operator: Any) -> AtenEntry | None:
    if not isinstance(operator, OpOverload):
        return None
    packet = operator.overloadpacket.__name__
    if operator.namespace != "aten":
        return _ENTRIES.get(f"{operator.namespace}::{packet}")
    return _ENTRIES.get(f"{packet}.{operator._overloadname}") or _ENTRIES.get(packet) or _in_place(packet)


def _in_place(packet: str) -> AtenEntry | None:
    """``add_`` is ``add``, its result written over the first operand."""
    entry = _ENTRIES.get(packet.removesuffix("_")) if packet.endswith("_") else None
    return entry and AtenEntry(entry.function, entry.signature, in_place=True)


def _takes(entry: AtenEntry, node: fx.Node) -> bool:
    wanted = {"wanted": ()} if entry.chooses_results else {}
    try:
        entry.signature.bind(*node.args, **node.kwargs, **wanted)
    except TypeError:
        return False
    return True


# --- operands: one dtype for all of them, and lists of one entry per axis ---------------------------------------------


def to_dtype(x: Var, dtype: torch.dtype | DType | None) -> Var:
    """``x`` converted to a dtype; None keeps its own."""
    wanted = gradspec_dtype(dtype) if isinstance(dtype, torch.dtype) else dtype
    return x if wanted in (None, x.dtype) else convert(x, wanted)


def promoted(*values: Any) -> tuple[Any, ...]:
    """Operands converted to the one dtype PyTorch computes with; numbers stay numbers."""
    dtype = common_dtype(values)
    return tuple(to_dtype(v, dtype) if isinstance(v, Var) else v for v in values)


def common_dtype(values: Sequence[Any]) -> DType:
    """By PyTorch's own rule, in which a scalar counts less than a tensor with axes."""
    first, *rest = [
        torch.empty(v.shape, dtype=torch_dtype(v.dtype), device="meta") if isinstance(v, Var) else v for v in values
    ]
    dtype = torch.result_type(first, rest[0] if rest else first)
    for other in rest[1:]:
        dtype = torch.promote_types(dtype, torch.result_type(other, other))
    return gradspec_dtype(dtype)


def summands(*values: Any) -> tuple[Any, ...]:
    """Operands of one dtype, with a number that a format of 16 bits does not hold converted in the graph.

    Kernels that add in float32 need not round it first, and those of PyTorch do so or not, by device.
    """
    like = next((v for v in values if isinstance(v, Var)), None)
    if like is None:
        return values
    return tuple(v if holds(like, v) else to_dtype(like.owner.const(np.float32(v)), like.dtype) for v in values)


def holds(x: Var, value: Any) -> bool:
    """Whether a value is a variable, or a number that the dtype of ``x`` holds as well as float32 does."""
    if isinstance(value, Var) or not x.type.is_float or x.dtype.numpy.itemsize > 2:
        return True
    with np.errstate(over="ignore"):
        return bool(x.dtype.numpy.type(value) == np.float32(value)) or value != value


def product_with(x: Var, factor: float) -> Any:
    """``x`` times a number in the format that PyTorch computes in, which is float32 for those of 16 bits."""
    return x * factor if holds(x, factor) else scale(x, float(np.float32(factor)))


def floating(x: Var) -> Var:
    """Integers converted to PyTorch's default floating-point dtype, as its functions of real numbers do."""
    return x if x.type.is_float else to_dtype(x, torch.get_default_dtype())


def positive_axis(axis: int, rank: int) -> int:
    """An axis counted from the front; a scalar passes for one axis, as it does in PyTorch."""
    return axis % max(rank, 1)


def axes_of(dim: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """The axes of a reduction, from the front; None, or none given, is all of them."""
    given = [dim] if isinstance(dim, int) else list(dim or ())
    chosen = {positive_axis(d, rank) for d in given}
    return tuple(a for a in range(rank) if a in chosen or not given)
