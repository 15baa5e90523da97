"""Graphs as functions of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradspec.graph.graph import Graph
from gradspec.interop.torch.operators import GRAPH, apply, is_watched, needs_gradient
from gradspec.interop.torch.structure import opened

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
        constants = [_constant(graph, i) for i in range(_count(graph))]
        return tuple(GRAPH([*tensors, *constants], _text(graph)))
    known = opened(graph)
    if not (is_watched(tensors) or needs_gradient(tensors)):
        return known.closed.run(tensors)
    return apply(known.structure, [*tensors, *known.constants])


@_constant_while_compiling
def _text(graph: Graph) -> str:
    return opened(graph).structure.text


@_constant_while_compiling
def _count(graph: Graph) -> int:
    return len(opened(graph).constants)


@_constant_while_compiling
def _constant(graph: Graph, i: int) -> Tensor:
    return opened(graph).constants[i]
