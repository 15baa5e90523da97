"""Write down the public surface: what ``docs/stability.md`` promises, one line for each thing that could change.

python tools/surface.py    # writes tests/surface.txt; look at the difference before committing it
"""

import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click

import gradspec as gs
from gradspec import cli, doctor
from gradspec.bench import report as bench
from gradspec.conformance import command as check
from gradspec.conformance.model.run import Finding, Run
from gradspec.referee import command as referee
from gradspec.saving import graphs
from gradspec.verify import command as verify
from gradspec.verify.solving import Answer

LISTING = Path(__file__).parents[1] / "tests" / "surface.txt"
MODULES = (gs, gs.spec, gs.domains, gs.conformance, gs.verify, gs.referee, gs.testing)


def lines() -> Iterator[str]:
    """The listing, a line at a time."""
    for module in MODULES:
        names = dir(module) if module is gs else module.__all__
        for name in sorted(names):
            yield from describe(f"{module.__name__}.{name}", getattr(module, name))
    yield from describe_command("gradspec", cli.main)
    yield f"exit codes of check: {check.CLEAN} {check.DEFECTS} {check.MISUSED} {check.INCOMPLETE}"
    yield f"exit codes of verify: {verify.ANSWERED} {verify.WRONG} {click.UsageError.exit_code} {verify.INCOMPLETE}"
    yield f"exit codes of referee: {referee.PASSED} {referee.FAILED} {click.UsageError.exit_code} {referee.INCOMPLETE}"
    yield f"exit codes of the others: 0 {click.ClickException.exit_code} {click.UsageError.exit_code}"
    yield f"file format: version {graphs.VERSION}: {' '.join(graphs.STRUCTURE)}"
    yield f"JSON of check: {fields(Run)}"
    yield f"JSON of check, a finding: {fields(Finding)}"
    yield f"JSON of bench: format {bench.FORMAT}"
    yield f"JSON of verify: {fields(Answer)}"
    yield f"JSON of referee: {fields(gs.referee.Score)}"
    yield f"JSON of doctor: {fields(doctor.Examination)}"


def fields(record: type) -> str:
    return " ".join(field.name for field in dataclasses.fields(record))


def describe(name: str, value: Any) -> Iterator[str]:
    """A function with its parameters, a class with its members, the kind of anything else."""
    if isinstance(value, ModuleType):
        yield f"{name}: module"
    elif inspect.isclass(value):
        yield f"{name}: class{signature(value)}"
        for member in sorted(set(dir(value)) - set(dir(Exception if issubclass(value, Exception) else object))):
            if not member.startswith("_"):
                thing = inspect.getattr_static(value, member)
                called = getattr(value, member)
                is_function = callable(called) and not isinstance(thing, property)
                yield f"{name}.{member}{signature(called) if is_function else ''}"
    else:
        yield f"{name}{signature(value)}" if callable(value) else f"{name}: {type(value).__name__}"


def signature(value: Any) -> str:
    """The parameters with their defaults, without types, which are written differently by versions of Python."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    plain = [p.replace(annotation=p.empty, default=shown(p.default)) for p in found.parameters.values()]
    return str(inspect.Signature(plain))


class Shown(str):
    __repr__ = str.__str__


def shown(default: Any) -> Any:
    """A default as it is written if it is a plain value, and dots for any other."""
    is_plain = default is None or isinstance(default, bool | int | float | str | tuple)
    return default if default is inspect.Parameter.empty or is_plain else Shown("...")


def describe_command(name: str, command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        options = parameter.opts[0] if isinstance(parameter, click.Argument) else " ".join(parameter.opts)
        choices = f" {'|'.join(parameter.type.choices)}" if isinstance(parameter.type, click.Choice) else ""
        marks = [mark for mark in ("required", "multiple", "is_flag") if getattr(parameter, mark, False)]
        yield " ".join([f"$ {name} {options}{choices}", *marks])
    if isinstance(command, click.Group):
        for part in sorted(command.commands):
            yield from describe_command(f"{name} {part}", command.commands[part])


if __name__ == "__main__":
    LISTING.write_text("\n".join(lines()) + "\n", encoding="utf-8")
