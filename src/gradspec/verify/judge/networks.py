"""A case as a network of ours: the lines of a program, which is run and printed."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np

import gradspec.wiring  # noqa: F401  (what graphs can do)
from gradspec.conformance.model.attributes import OPERATORS, spelled
from gradspec.conformance.model.problem import Array, Problem
from gradspec.conformance.targets.program import Code, applied, literal
from gradspec.graph.types import DTYPES
from gradspec.ops.linear import linear
from gradspec.ops.pointwise import relu
from gradspec.ops.shape import flatten
from gradspec.transforms.trace import trace
from gradspec.verify.bounds import bounds
from gradspec.verify.judge.cases import BoundsCase, weights_of

GRADSPEC = SimpleNamespace(
    **{**OPERATORS, **DTYPES}, relu=relu, linear=linear, flatten=flatten, trace=trace, bounds=bounds
)
"""What of ``import gradspec as gs`` the programs use."""
MODULES = {"gs": GRADSPEC, "np": np}


def arrays(case: BoundsCase, box: tuple[Array, Array]) -> list[str]:
    """A line for every array: weights, and the ends of the box."""
    given = {**weights_of(case), "lower": box[0], "upper": box[1]}
    return [f"{name} = {literal(array)}" for name, array in given.items()]


def named(problem: Problem, place: int) -> list[Code]:
    """The operands of a step: ``x``, and the arrays of its place."""
    return [Code(name if name == "x" else f"{name}{place}") for name in problem.named_shapes()]


def network(case: BoundsCase) -> list[str]:
    """The network as a function of ours, and its graph."""
    lines = ["def net(x):"]
    for place, (step, (_, problem)) in enumerate(zip(case.steps, case.shapes(), strict=False)):
        if problem is not None:
            call = applied(f"gs.{step.op}", *named(problem, place), **spelled(problem))
        elif step.op == "linear":
            call = Code(f"gs.linear(gs.flatten(x, 1), weight{place}, bias{place})")
        else:
            call = Code("gs.relu(x)")
        lines.append(f"    x = {call}")
    return [*lines, "    return x", f"graph = gs.trace(net, gs.f32{list(case.shape)})"]


def program(imports: Sequence[str], *parts: Sequence[str]) -> str:
    """A program that can be copied, of parts with a line between them."""
    return "\n\n".join("\n".join(part) for part in (imports, *parts))
