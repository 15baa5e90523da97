"""Batching: the rule of most operators, and the leading axis that it gives to operands without one."""

from __future__ import annotations

from collections.abc import Sequence

from gradspec.graph.builder import apply_all
from gradspec.graph.ir import Attributes, Op, Var
from gradspec.ops.shape import broadcast_to


def leading_batch(op: Op, attrs: Attributes, operands: Sequence[Var], batched: Sequence[bool]) -> tuple[Var, ...]:
    """The batching rule where leading axes are independent: the same node, one axis more on each operand."""
    return apply_all(op, attrs, *with_leading_axis(operands, batched))


def with_leading_axis(operands: Sequence[Var], batched: Sequence[bool]) -> list[Var]:
    """Every operand with the batch axis in front."""
    n = next(v.shape[0] for v, has in zip(operands, batched, strict=True) if has)
    return [v if has else spread(v, n) for v, has in zip(operands, batched, strict=True)]


def spread(x: Var, n: int) -> Var:
    """``x`` repeated ``n`` times along a new leading axis."""
    return broadcast_to(x, (n, *x.shape))
