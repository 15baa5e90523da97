"""A call of our own kernels as a user of gradspec writes it: the lines that a reproducer prints are those that run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradspec.conformance.model.attributes import spelled
from gradspec.conformance.model.problem import GIVES_INDICES, Array, Call, Problem
from gradspec.conformance.targets.layers import LAYERS
from gradspec.conformance.targets.program import Code, applied, assignments, imports
from gradspec.graph.types import type_of


def program(call: Call) -> str:
    """The call as a program that prints the results."""
    value, *lines = definitions(call)
    spread = call.mode in ("vjp", "second") if is_eager(call) else expression(call).endswith(":]")
    calls = [*lines, f'print(*{expression(call)}, sep="\\n")' if spread else f"print({expression(call)})"]
    if call.variant == "one_by_one":
        calls = [f"for i in range({samples(call.problem)}):", *(f"    {line}" for line in calls)]
    more = ["from dataclasses import replace"] if any("replace(" in line for line in calls) else []
    used = ["import gradspec as gs", *["from gradspec.interop import compose"] * ("compose." in value)]
    return "\n".join([*more, *imports(call, *used), "", *assignments(call), value, *calls])


def is_eager(call: Call) -> bool:
    return call.variant in ("eager", "one_by_one")


def wants_indices(call: Call) -> bool:
    return call.problem.op in GIVES_INDICES and call.mode == "value" and call.variant != "without_indices"


def names_of(call: Call) -> tuple[str, ...]:
    """The results that there are: the last of a graph's outputs."""
    names = call.problem.results(call.mode)
    return names[:1] if call.mode == "value" and not wants_indices(call) else names


def definitions(call: Call) -> list[str]:
    """The operator as a function ``f`` of its inputs, and what else is made once.

    Where winners are to be ``recorded``, a map follows that changes nothing but needs the value for its derivative, so
    that values and cotangents are made in steps apart, with a tape of the winners between them.
    """
    names, count = ", ".join(call.named()), 1 if call.mode == "jvp" else len(call.problem.differentiable)
    function = _function(call)
    lines = [f"f = lambda {names}: {f'gs.leaky_relu({function}, 1.0)' if call.variant == 'recorded' else function}"]
    if is_eager(call):
        pulled = f"pulled = lambda {names}, g: gs.vjp(f, {names})[1](g)[:{count}]"
        return [*lines, pulled] if call.mode == "second" else lines
    is_batched = call.variant == "batched"
    types = ", ".join(f"gs.{type_of(array)}" for array in (sample(call, 0) if is_batched else call).named().values())
    axes = [None if is_shared(name) else 0 for name in call.named()]
    batched = f".batch({samples(call.problem)}, {axes})" if is_batched else ""
    derived = {"value": "", "jvp": ".jvp()"}.get(call.mode, ".vjp()")
    lines.append(f"graph = gs.trace(f, {types}){batched}{derived}")
    if call.mode == "second" or call.variant == "derivative_alone":  # derivatives stand behind values
        again = ".vjp()" if call.mode == "second" else ""
        lines.append(f"graph = replace(graph, outputs=graph.outputs[-{count}:]){again}")
    return [*lines, "run = gs.compile(graph" + (', backend="numpy")' if call.variant == "numpy" else ")")]


def _function(call: Call) -> str:
    if call.problem.op in LAYERS:
        return LAYERS[call.problem.op].expression
    indices = {"return_indices": True} if wants_indices(call) else {}
    return applied(f"gs.{call.problem.op}", *map(Code, call.named()), **spelled(call.problem), **indices)


def expression(call: Call) -> str:
    """What gives the results, or the only one."""

    def spelled(name: str) -> str:
        return f"{name}[i]" if call.variant == "one_by_one" and not is_shared(name) else name

    moved, inputs = [f"d{name}" for name in call.problem.differentiable], ", ".join(map(spelled, call.named()))
    if not is_eager(call):
        more = {"value": [], "jvp": moved, "vjp": ["g"], "second": ["g", *moved]}[call.mode]
        return _run(call, [*call.named(), *more])
    if call.mode == "value":
        return f"f({inputs})"
    if call.mode == "jvp":
        moving = call.problem.differentiable
        tangents = "".join(f"{spelled(f'd{name}')}, " if name in moving else "None, " for name in call.named())
        return f"gs.jvp(f, ({inputs},), ({tangents}))[1]"
    if call.mode == "vjp":
        return f"gs.vjp(f, {inputs})[1]({spelled('g')})"
    directions = "".join(f"{spelled(name)}, " for name in moved)
    return f"gs.vjp(pulled, {inputs}, {spelled('g')})[1](({directions}))"


def _run(call: Call, names: list[str]) -> str:
    """The compiled graph on its arrays, without the values before its results. These go to arrays that hold something
    else: fresh memory is zero, or holds what an earlier call left there, which is often right."""
    count, alone = len(names_of(call)), call.variant == "derivative_alone"
    values = len(call.problem.differentiable) if call.mode == "second" else int(call.mode != "value" and not alone)
    outs = "[np.full(v.shape, 77, v.dtype.numpy) for v in run.plan.outputs]"
    out, rest = (f"{outs}[0]", "") if values + count == 1 else (f"tuple({outs})", f"[-{count}:]")
    return f"run({', '.join(names)}, out={out}){rest}"


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
