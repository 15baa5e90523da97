"""The program of a failure, with the setting that it needs: other memory, an earlier call, several threads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradspec.conformance.checks.neighbours import neighbour, neighbours, others
from gradspec.conformance.checks.repeat import halves
from gradspec.conformance.checks.state import describe_setting
from gradspec.conformance.model.changes import Changes
from gradspec.conformance.model.problem import ON_NANS, Call
from gradspec.conformance.model.target import CALLERS, Target
from gradspec.conformance.model.verdict import Verdict
from gradspec.conformance.targets.program import assignments, literal

CALLS = 600
"""Calls that a program makes in threads."""
MEMORY = {
    "beside": ("beside", "beside({})", "one cell further in memory"),
    "margins": ("between", "between({}, 0xFF)[0]", "with NaNs around it"),
    "fence_end": ("fenced", "fenced({})", "it ends where memory does: behind it lies a page that may not be touched"),
    "fence_begin": (
        "fenced",
        "fenced({}, at_end=False)",
        "it begins where memory does: before it lies a page that may not be touched",
    ),
}
"""For each place in memory: what is imported from `gradspec.conformance.checks.memory`, its call, and what it does."""


def programs(target: Target, call: Call, verdict: Verdict) -> dict[str, str]:
    """The call as a program by itself, in the setting that it was met in, and after each neighbour, by the setting.

    Something kept from an earlier call may have made it fail, whoever met it, and only a new process tells.
    """
    known = ("",) if verdict.setting == "" else ("", verdict.setting)
    found = {setting: text for setting in known if (text := in_setting(target, call, setting))}
    for difference in (*others(call), *Changes.of(call).differences):
        for number, other in enumerate(one for one in neighbours(call, difference) if target.takes(one)):
            setting = f"after {difference}" + " " * number  # several may differ in the same
            found.setdefault(setting, _after(target, call, other, setting))
    return found


def _after(target: Target, call: Call, other: Call, setting: str) -> str:
    in_place = setting.removeprefix("after numbers of ").strip()
    return join_calls(target, [other, call], f"# {describe_setting(setting)}", in_place)


def in_setting(target: Target, call: Call, setting: str) -> str | None:
    """The program, or None where it cannot be written."""
    word, _, difference = setting.partition(" ")
    if word in ("after", "around"):
        other = neighbour(call, difference)
        if other is None or not target.takes(other):
            return None
        if word == "after":
            return _after(target, call, other, setting)
        in_place = difference.removeprefix("numbers of ")
        return join_calls(target, [call, other, call], f"# {describe_setting(setting)}", in_place)
    if word in ("again", "halves"):
        between = [call.mapped(halves).in_layout()] if word == "halves" else []
        return join_calls(target, [call, *between, call], "# and again")
    if word == "":
        return target.reproducer(call).rstrip()
    if word == ON_NANS:
        return target.reproducer(replace(call, variant=ON_NANS)).rstrip()
    parts = ProgramParts.of(target, call)
    if word in MEMORY:
        name, expression, words = MEMORY[word]
        lines = [f"{array} = {expression.format(array)}  # {words}" for array in call.arrays()]
        return parts.text([f"from gradspec.conformance.checks.memory import {name}"], lines) if parts.arrays else None
    if parts.expression is None:
        return None
    if word == "together":
        return together(call, parts)
    kept = ["first = " + parts.expression, "kept = deepcopy(first)"]
    if word == "held":
        first, *_ = call.arrays()
        after = [
            *kept,
            f"{first} = {first} / 2",
            parts.expression,
            "print(repr(first) != repr(kept))  # it has changed",
        ]
        return parts.text(["from copy import deepcopy"], after, "")
    if word == "scribbled":
        fill = (
            "[array.fill(7) for array in (first if isinstance(first, tuple) else [first])]  # the caller's own memory"
        )
        return parts.text([], ["first = " + parts.expression, fill])
    return None


def together(call: Call, parts: ProgramParts) -> str | None:
    """Two calls on other numbers by turns, from several threads."""
    name, *_ = call.arrays()
    other = neighbour(call, f"numbers of {name}")
    if other is None:
        return None
    lines = [
        f"given = [{name}, {literal(other.arrays()[name])}]",
        f"def call(i, {name}=None):",
        f"    {name} = given[i % 2]",
        f"    return repr({parts.expression})",
        "alone = [call(0), call(1)]",
        "sys.setswitchinterval(1e-6)",
        f"with ThreadPoolExecutor({CALLERS}) as pool:",
        f"    results = list(pool.map(call, range({CALLS})))",
        "print(any(result != alone[i % 2] for i, result in enumerate(results)))  # some differ from those alone",
    ]
    return parts.text(["import sys", "from concurrent.futures import ThreadPoolExecutor"], lines, "")


class ProgramParts:
    """A program taken apart: imports, arrays, and what is done with them, whose last line prints."""

    def __init__(self, imports: Sequence[str], arrays: dict[str, list[str]], body: Sequence[str]) -> None:
        self.imports, self.arrays, self.body = list(imports), arrays, list(body)

    @staticmethod
    def of(target: Target, call: Call) -> ProgramParts:
        """Without arrays where the target writes them in a way of its own."""
        text = target.reproducer(call).rstrip()
        if made := re.search(r"^print\((\w+)\(\)\.", text, re.M):  # one object for all calls
            text = text.replace(f"{made[1]}().", "kernels.")
            text = text.replace("\n\n", f"\n\nkernels = {made[1]}()\n", 1)
        block = "\n".join(assignments(call))
        head, found, body = text.partition(f"\n{block}\n")
        if not found or not block:
            return ProgramParts([], {}, text.splitlines())
        arrays: dict[str, list[str]] = {}
        for line in block.splitlines():
            arrays.setdefault(line.partition(" = ")[0], []).append(line)
        return ProgramParts([line for line in head.splitlines() if line], arrays, body.splitlines())

    @property
    def expression(self) -> str | None:
        """What the one line prints that makes the call, if there is one."""
        (line, *more) = self.body
        return line.removeprefix("print(")[:-1] if not more and line.startswith("print(") and self.arrays else None

    def text(self, imports: Sequence[str] = (), before: Sequence[str] = (), body: str | None = None) -> str:
        lines = [line for block in self.arrays.values() for line in block]
        after = self.body if body is None else [body] if body else []
        return "\n".join([*imports, *self.imports, *([""] if self.imports else []), *lines, *before, *after])


def join_calls(target: Target, calls: Sequence[Call], remark: str, in_place: str = "") -> str:
    """Calls one after the other. Of the later ones those arrays are written that differ from what was there.

    The array ``in_place`` gets its other numbers where it lies.
    """
    parts = [ProgramParts.of(target, call) for call in calls]
    lines = list(dict.fromkeys(line for part in parts for line in part.imports))
    lines += [""] if lines else []
    there: dict[str, list[str]] = {}
    for number, part in enumerate(parts):
        lines += [remark] if number == len(parts) - 1 else []
        for name, block in part.arrays.items():
            if there.get(name) != block:
                lines += _assign(name, block, name == in_place and name in there)
        there |= part.arrays
        lines += part.body if number == len(parts) - 1 else _silence(part.body)
    return "\n".join(lines)


def _assign(name: str, block: Sequence[str], in_place: bool) -> Iterator[str]:
    if in_place:
        yield block[0].replace(f"{name} = ", f"{name}[...] = ", 1) + "  # in the same memory"
    else:
        yield from block


def _silence(body: Sequence[str]) -> list[str]:
    """Without what is printed."""
    return [re.sub(r'^( *)print\(\*?(.*?)(?:, sep="\\n")?\)$', r"\1\2", line) for line in body]
