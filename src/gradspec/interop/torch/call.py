"""Graphs as functions of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from gradspec.graph.graph import Graph
from gradspec.interop.torch.device import DEVICES
from gradspec.interop.torch.operators import GRAPH, apply, is_watched, needs_gradient
from gradspec.interop.torch.structure import opened
from gradspec.interop.torch.types import tensor_of
from gradspec.spec.errors import UnsupportedError

Function = TypeVar("Function", bound=Callable[..., Any])
_constant_while_compiling: Callable[[Function], Function] = torch.compiler.assume_constant_result


def call(graph: Graph, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The outputs of a graph, in memory of their own; autograd, ``torch.func``, compilers and tracers may watch.

    >>> import gradspec as gs, torch
    >>> square = gs.trace(lambda x: x * x, gs.f32[2])
    >>> torch.func.jvp(lambda x: call(square, [x])[0], (torch.tensor([1.0, 3.0]),), (torch.ones(2),))[1]
    tensor([2., 6.])
    """
    if torch.compiler.is_compiling():
        constants = [_constant(graph, i, place_of(tensors)) for i in range(_count(graph))]
        return tuple(GRAPH([*tensors, *constants], _text(graph)))
    known = opened(graph)
    if not (is_watched(tensors) or needs_gradient(tensors)):
        return known.closed.run(tensors)
    return apply(known.structure, [*tensors, *known.constants(place_of(tensors))])


def place_of(tensors: Sequence[Tensor]) -> torch.device:
    """Where a graph runs that is given these."""
    return tensors[0].device if tensors else _CPU


_CPU = torch.device("cpu")


def run_there(graph: Graph, arrays: Sequence[Any]) -> Any:
    """A graph on tensors of a device, and numbers without axes: one tensor for one output, a tuple for several."""
    device = next(a.device for a in arrays if isinstance(a, Tensor) and a.device.type in DEVICES)
    results = opened(graph).closed.run([_there(a, device) for a in arrays])
    return results[0] if len(results) == 1 else results


def _there(value: Any, device: torch.device) -> Tensor:
    if isinstance(value, Tensor):
        return value.resolve_neg()
    if getattr(value, "shape", None) != ():
        raise UnsupportedError(
            f"an array of {type(value).__name__} was given beside a tensor on {device}; move it there: "
            f"torch.as_tensor(x, device={str(device)!r})"
        )
    return tensor_of(np.asarray(value)).to(device)


@_constant_while_compiling
def _text(graph: Graph) -> str:
    return opened(graph).structure.text


@_constant_while_compiling
def _count(graph: Graph) -> int:
    return len(opened(graph).constants(_CPU))


@_constant_while_compiling
def _constant(graph: Graph, i: int, device: torch.device) -> Tensor:
    return opened(graph).constants(device)[i]
