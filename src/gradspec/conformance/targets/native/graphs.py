"""Calls as the graphs that every user of gradspec builds, and their samples as calls of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import gradspec.transforms.batch  # noqa: F401  (graphs call what this registers)
from gradspec.conformance.model.attributes import as_function
from gradspec.conformance.model.problem import GIVES_INDICES, Array, Call, Problem
from gradspec.graph.ir import Graph
from gradspec.graph.types import TensorType, type_of
from gradspec.ops.pointwise import leaky_relu
from gradspec.transforms.trace import trace


def operator(call: Call) -> Callable[..., Any]:
    """The operator as a function of the inputs that are there.

    Where winners are to be ``recorded``, a map follows that changes nothing but needs the value for its derivative, so
    that values and cotangents are made in steps apart, with a tape of the winners between them.
    """
    function = as_function(call.problem, **({"return_indices": True} if wants_indices(call) else {}))
    return (lambda x: leaky_relu(function(x), 1.0)) if call.variant == "recorded" else function


def wants_indices(call: Call) -> bool:
    return call.problem.op in GIVES_INDICES and call.mode == "value" and call.variant != "without_indices"


def graph_of(call: Call) -> Graph:
    value = _batched(call) if call.variant == "batched" else trace(operator(call), *types(call))
    if call.mode == "value":
        return value
    if call.mode == "jvp":
        return _last(value.jvp(), 1) if call.variant == "derivative_alone" else value.jvp()
    pulled, count = value.vjp(), len(call.problem.differentiable)
    if call.mode == "vjp":
        return _last(pulled, count) if call.variant == "derivative_alone" else pulled
    return _last(pulled, count).vjp()


def _batched(call: Call) -> Graph:
    """The graph of one sample, batched."""
    one = sample(call, 0)
    return trace(operator(one), *types(one)).batch(samples(call.problem) or 0, axes(call))


def axes(call: Call) -> list[int | None]:
    return [None if is_shared(name) else 0 for name in call.named()]


def types(call: Call) -> list[TensorType]:
    return [type_of(array) for array in call.named().values()]


def _last(graph: Graph, count: int) -> Graph:
    """The graph with its last outputs alone: derivatives stand behind values."""
    return replace(graph, outputs=graph.outputs[-count:])


def names_of(call: Call) -> tuple[str, ...]:
    """The results that the graph has, the last of its outputs."""
    names = call.problem.results(call.mode)
    return names[:1] if call.mode == "value" and not wants_indices(call) else names


# --- samples ----------------------------------------------------------------------------------------------------------


def samples(problem: Problem) -> int | None:
    """How many indices the leading axis has; None where there is none."""
    return problem.lead[0] if problem.lead else None


def is_shared(name: str) -> bool:
    """Whether all samples share the array, or its gradient sums over them."""
    return name.endswith(("weight", "bias"))


def sample(call: Call, index: int) -> Call:
    """One index of the leading axis as a call."""

    def part(name: str, array: Array) -> Array:
        if is_shared(name):
            return array
        return array[index] if len(array) else np.zeros(array.shape[1:], array.dtype)

    one = call.with_arrays({name: part(name, array) for name, array in call.arrays().items()})
    shapes = tuple(None if array is None else array.shape for array in one.inputs)
    return replace(one, problem=replace(call.problem, shapes=shapes), output=call.output[1:])
