"""A call of our own kernels written out as a program that prints the results."""

from __future__ import annotations

from gradspec.conformance.model.attributes import global_rank
from gradspec.conformance.model.problem import Call
from gradspec.conformance.targets.native.graphs import axes, is_shared, names_of, sample, samples, types, wants_indices
from gradspec.conformance.targets.program import Code, applied, assignments, imports


def program(call: Call) -> str:
    """The call as a user of gradspec writes it."""
    one_by_one = call.variant == "one_by_one"
    calls = _eager_lines(call) if one_by_one or call.variant == "eager" else _compiled_lines(call)
    if one_by_one:
        calls = [f"for i in range({samples(call.problem)}):", *(f"    {line}" for line in calls)]
    more = ["from dataclasses import replace"] if any("replace(" in line for line in calls) else []
    return "\n".join([*more, *imports(call, "import gradspec as gs"), "", *assignments(call), _function(call), *calls])


def _function(call: Call) -> str:
    indices = {"return_indices": True} if wants_indices(call) else {}
    attributes = {**global_rank(call.problem.op, call.problem.rank), **call.problem.attributes, **indices}
    function = applied(f"gs.{call.problem.op}", *map(Code, call.named()), **attributes)
    recorded = applied("gs.leaky_relu", function, 1.0) if call.variant == "recorded" else function
    return f"f = lambda {', '.join(call.named())}: {recorded}"


def _compiled_lines(call: Call) -> list[str]:
    """The steps of `graph_of` and of the target's run."""
    is_batched, derived = call.variant == "batched", {"value": "", "jvp": ".jvp()"}.get(call.mode, ".vjp()")
    given = ", ".join(f"gs.{kind}" for kind in types(sample(call, 0) if is_batched else call))
    batched = f".batch({samples(call.problem)}, {axes(call)})" if is_batched else ""
    lines = [f"graph = gs.trace(f, {given}){batched}{derived}"]
    count, values = 1 if call.mode == "jvp" else len(call.problem.differentiable), int(call.mode != "value")
    if call.mode == "second" or call.variant == "derivative_alone":
        again, values = (".vjp()", count) if call.mode == "second" else ("", 0)
        lines.append(f"graph = replace(graph, outputs=graph.outputs[-{count}:]){again}")
    lines.append("run = gs.compile(graph" + (', backend="numpy")' if call.variant == "numpy" else ")"))
    return [*lines, _printed(call, values)]


def _printed(call: Call, values: int) -> str:
    """The line that runs the compiled graph and prints its results without the values before them."""
    count = len(names_of(call))
    names = list(call.arrays())
    if call.mode == "second":  # the cotangent stands before the directions in the graph, and after them here
        names = [*call.named(), "g", *(f"d{name}" for name in call.problem.differentiable)]
    outs = "[np.empty(v.shape, v.dtype.numpy) for v in run.plan.outputs]"
    out = f", out={outs}[0]" if values + count == 1 else f", out=tuple({outs})"
    ran = f"run({', '.join(names)}{out if call.variant == 'out' else ''})"
    return f"print({ran})" if values + count == 1 else f'print(*{ran}[-{count}:], sep="\\n")'


def _eager_lines(call: Call) -> list[str]:
    def spelled(name: str) -> str:
        return f"{name}[i]" if call.variant == "one_by_one" and not is_shared(name) else name

    inputs = ", ".join(map(spelled, call.named()))
    if call.mode == "value":
        return [f"print(f({inputs}))"]
    if call.mode == "jvp":
        tangents = "".join("None, " if name == "indices" else f"{spelled(f'd{name}')}, " for name in call.named())
        return [f"print(gs.jvp(f, ({inputs},), ({tangents}))[1])"]
    if call.mode == "vjp":
        return [f'print(*gs.vjp(f, {inputs})[1]({spelled("g")}), sep="\\n")']
    names, count = ", ".join(call.named()), len(call.problem.differentiable)
    directions = "".join(f"{spelled(f'd{name}')}, " for name in call.problem.differentiable)
    return [
        f"pulled = lambda {names}, g: gs.vjp(f, {names})[1](g)[:{count}]",
        f'print(*gs.vjp(pulled, {inputs}, {spelled("g")})[1](({directions})), sep="\\n")',
    ]
