"""The attributes of the operators, with every default of the specification spelled out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from gradspec import spec
from gradspec.conformance.model.problem import INPUTS, Attributes, Problem
from gradspec.ops import conv, pool, smooth_pool, unfold, unpool
from gradspec.spec.window import per_axis

OPERATORS: dict[str, Callable[..., Any]] = {
    name: getattr(room, name)
    for room in (pool, smooth_pool, conv, unpool, unfold)
    for name in INPUTS
    if hasattr(room, name)
}
"""Our own operators, on arrays and on the variables of graphs."""


@cache
def known(op: str) -> dict[str, Any]:
    """The attributes of an operator with the specification's defaults; ``inspect.Parameter.empty`` where it has none.

    >>> known("adaptive_max_pool")["ties"]
    'first'
    """
    parameters = inspect.signature(getattr(spec, op)).parameters
    return {name: p.default for name, p in parameters.items() if name not in (*INPUTS[op], "return_indices")}


def settled(op: str, rank: int, attributes: Attributes) -> dict[str, Any]:
    """All attributes of an operator, those that are not given at their defaults.

    >>> settled("unfold", 2, {"kernel_size": (2, 3)})["padding"]
    ((0, 0), (0, 0))
    >>> settled("max_pool", 1, {"kernel_size": (3,), "ceil_mode": True})["stride"]
    (3,)
    """
    found = {name: attributes.get(name, default) for name, default in {**known(op), **global_rank(op, rank)}.items()}
    if "stride" in found and found["stride"] is None:
        found["stride"] = found["kernel_size"]
    for name in ("stride", "dilation", "output_padding"):
        if name in found:
            found[name] = per_axis(name, found[name], rank, least=0)
    if isinstance(found.get("padding"), int):
        found["padding"] = ((found["padding"],) * 2,) * rank
    return found


def global_rank(op: str, rank: int) -> dict[str, int]:
    """The attribute ``rank`` of operators that cannot read it off a window."""
    return {"rank": rank} if "rank" in known(op) else {}


def spelled(problem: Problem) -> dict[str, Any]:
    """The attributes of a call, with the rank where the operator cannot read it off a window."""
    return {**global_rank(problem.op, problem.rank), **problem.attributes}


def is_usual(op: str, rank: int, attributes: Attributes, name: str) -> bool:
    """Whether an attribute has the value that it would have if it were left out.

    >>> is_usual("max_pool", 1, {"kernel_size": (3,), "stride": (3,)}, "stride")
    True
    """
    default = known(op)[name]
    if default is inspect.Parameter.empty:
        return False
    if name == "rank":
        return bool(rank == default)
    others = {key: value for key, value in attributes.items() if key != name}
    return bool(settled(op, rank, attributes)[name] == settled(op, rank, others)[name])
