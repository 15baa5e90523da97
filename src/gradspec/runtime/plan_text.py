"""A plan as a table: a line for each step, with its kernel, its operands, the bytes it moves and where it writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from textwrap import wrap

from gradspec.graph.ir import Var
from gradspec.graph.later import provides
from gradspec.graph.show import ascii_only
from gradspec.runtime.group import Step
from gradspec.runtime.memory import nbytes
from gradspec.runtime.plan import Plan

HEADER = ("step", "operators", "kernel", "reads -> writes", "bytes", "buffer")
WIDEST = (4, 16, 25, 32, 11, 14)
"""Columns; with two spaces between them they fill 112 characters at most. Longer entries go on below."""


@provides("plan_text")
def text(plan: Plan) -> str:
    """The plan in plain text. ``bytes`` counts what a step reads and writes.

    >>> import gradspec as gs
    >>> print(gs.compile(lambda x: gs.reshape(x, (4,)), gs.f32[2, 2], backend="numpy").plan)
    step  operators  kernel  reads -> writes               bytes  buffer
       1  reshape    numpy   x:f32[2,2] -> reshape:f32[4]     32  view or fresh
    arena 0 bytes (0 without reuse), workspace 0 bytes per thread, results 16 bytes
    """
    rows = [HEADER, *(_once(step) for step in plan.prologue), *(_row(plan, i, s) for i, s in enumerate(plan.steps))]
    wrapped = [[_lines(cell, width) for cell, width in zip(row, WIDEST, strict=True)] for row in rows]
    widths = [max(len(line) for row in wrapped for line in row[column]) for column in range(len(HEADER))]
    lines = [_line(parts, widths) for row in wrapped for parts in zip_longest(*row, fillvalue="")]
    return "\n".join([*lines, _footer(plan)])


def _row(plan: Plan, number: int, step: Step) -> tuple[str, ...]:
    moved = 0 if step.view is not None else sum(nbytes(v.type) for v in {*step.inputs, *step.outputs})
    return (
        str(number + 1),
        _operators(step),
        _kernel(step, plan.fallback),
        f"{_variables(step.inputs)} -> {_variables(step.outputs)}",
        f"{moved:,}",
        ", ".join(dict.fromkeys(_buffer(plan, step, v) for v in step.outputs)),
    )


def _once(step: Step) -> tuple[str, ...]:
    moved = f"{_variables(step.inputs)} -> {_variables(step.outputs)}"
    return "once", _operators(step), _kernel(step, "numpy: constants"), moved, "", "constant"


def _operators(step: Step) -> str:
    return ", ".join(_counted(node.op.name for node in step.nodes)) or "-"


def _kernel(step: Step, fallback: str) -> str:
    if step.view is not None:
        return "view"
    return fallback if step.task is None else ascii_only(step.task.kernel)


def _counted(names: Iterable[str]) -> list[str]:
    """Each name once, with how often it occurs."""
    return [name if n == 1 else f"{n} {name}" for name, n in Counter(names).items()]


def _variables(variables: Iterable[Var]) -> str:
    return ", ".join(f"{ascii_only(v.name)}:{str(v.type).replace(' ', '')}" for v in dict.fromkeys(variables))


def _buffer(plan: Plan, step: Step, var: Var) -> str:
    if var in plan.arena:
        return f"{plan.arena[var]}..{plan.arena[var] + nbytes(var.type)}"
    if step.may_alias:
        return "view" if step.view is not None else "view or fresh"
    return "fresh" if step.task is None else "output"


def _lines(cell: str, width: int) -> list[str]:
    return wrap(cell, width, break_long_words=False, break_on_hyphens=False)


def _line(parts: Sequence[str], widths: Sequence[int]) -> str:
    numbers = (HEADER.index("step"), HEADER.index("bytes"))
    cells = [p.rjust(w) if i in numbers else p.ljust(w) for i, (p, w) in enumerate(zip(parts, widths, strict=True))]
    return "  ".join(cells).rstrip()


def _footer(plan: Plan) -> str:
    figures = [
        f"arena {plan.arena_bytes:,} bytes ({plan.bytes_without_reuse:,} without reuse)",
        f"workspace {plan.workspace:,} bytes per thread",
        f"results {plan.result_bytes:,} bytes",
        *([f"prepared constants {sum(plan.prepared_bytes):,} bytes"] if plan.prepared_bytes else []),
    ]
    return "\n".join(wrap(", ".join(figures), 112, break_on_hyphens=False))
