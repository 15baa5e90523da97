"""An operator is a frozen record: what it means and how it transforms. It holds no state and no kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from gradspec.graph.types import TensorType
from gradspec.spec.errors import UnsupportedError
from gradspec.spec.tensor import Tensor

if TYPE_CHECKING:
    from gradspec.graph.ir import Var

Attributes: TypeAlias = Any
"""A frozen dataclass of numbers, strings, bools, None and tuples of them: what a node knows besides its operands."""


IMPLIED = {"implied": True}
"""Metadata of an attribute that follows from the types around it, so that printing leaves it out."""


LATER = {"later": True}
"""Metadata of an attribute that its operator was first saved without: where a file lacks it, it has its default."""


def usual(entry: Any) -> dict[str, Any]:
    """Metadata of an attribute that printing leaves out where every entry is this one."""
    return {"usual": entry}


@dataclass(frozen=True)
class NoAttributes:
    """An operator without attributes."""


@dataclass(frozen=True)
class Op:
    """One operator.

    Rules are functions of the node's attribute record and its operands.

    - ``types(attrs, *types)``: the types of the outputs, or a ShapeError or DTypeError.
    - ``spec(attrs, *tensors)``: the outputs on any scalar, from ``gradspec.spec``.
    - ``linear``: ``"jointly"`` if the operator is one linear map of all its float operands, ``"each"`` if it is linear
      in each of them while the others are held. Both get their JVP for nothing.
    - ``jvp(attrs, primals, tangents)``: ``(outputs, output tangents)``; a tangent is None where it is zero, and at
      least one is not.
    - ``transpose(attrs, cotangents, operands, i)``: the cotangent of operand ``i``, in which the operator is linear.
      ``operands`` holds the others; for a jointly linear operator it holds types only.
    - ``batch(op, attrs, operands, batched)``: the outputs with a leading axis, given which operands have one.
    """

    name: str
    attributes: type
    types: Callable[..., tuple[TensorType, ...]]
    spec: Callable[..., tuple[Tensor, ...]]
    batch: Callable[..., tuple[Var, ...]]
    linear: str | None = None
    jvp: Callable[..., tuple[Sequence[Var], Sequence[Var | None]]] | None = None
    transpose: Callable[..., Var] | None = None
    moves: bool = False
    """The operator only moves numbers, so that applying it to constants while compiling is exact."""
    twice: Callable[[Attributes, Attributes, TensorType], Attributes | None] | None = None
    """``twice(first, second, type)``: the attributes of one application that does what two in a row do to an operand of
    ``type``; None if they leave it as it is. Without the rule, two in a row stay two."""
    constant: bool = False
    """The outputs do not change with the operands as far as derivatives go (comparisons, detach)."""

    def __repr__(self) -> str:
        return self.name

    def missing(self, rule: str, why: str = "") -> UnsupportedError:
        """The error for a rule that this operator lacks."""
        return UnsupportedError(
            f"{self.name} has no {rule} rule{why and f' ({why})'}; add it to its record in src/gradspec/ops"
        )
