"""Expressions that can be both computed and written out, so that a reproducer says exactly what was run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add, truediv
from typing import Any, TypeAlias

OPERATORS = {"+": add, "/": truediv}


@dataclass(frozen=True)
class Name:
    """A variable, something inside of one, or its negative: ``x``, ``lax.max``, ``-jnp.inf``."""

    text: str


@dataclass(frozen=True)
class Apply:
    """A function, by its name, on expressions and keywords that are literals or expressions."""

    function: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Infix:
    """Two expressions with an operator between them."""

    left: Any
    operator: str
    right: Any


Expression: TypeAlias = Name | Apply | Infix


def computed(expression: Any, names: Mapping[str, Any]) -> Any:
    """The value of an expression, or of a literal.

    >>> computed(Infix(Apply("max", (Name("x"), 4)), "/", 2), {"x": 3, "max": max})
    2.0
    """
    if isinstance(expression, Name):
        first, *inside = expression.text.removeprefix("-").split(".")
        value = reduce(getattr, inside, names[first])
        return -value if expression.text.startswith("-") else value
    if isinstance(expression, Infix):
        left, right = computed(expression.left, names), computed(expression.right, names)
        return OPERATORS[expression.operator](left, right)
    if not isinstance(expression, Apply):
        return expression
    arguments = [computed(argument, names) for argument in expression.arguments]
    keywords = {name: computed(value, names) for name, value in expression.keywords.items()}
    return computed(Name(expression.function), names)(*arguments, **keywords)


def source(expression: Any) -> str:
    """An expression, or a literal, as it is written.

    >>> source(Infix(Apply("lax.sum", (Name("x"),), {"axes": (0,)}), "/", 2))
    'lax.sum(x, axes=(0,)) / 2'
    """
    if isinstance(expression, Name):
        return expression.text
    if isinstance(expression, Infix):
        return f"{source(expression.left)} {expression.operator} {source(expression.right)}"
    if not isinstance(expression, Apply):
        return repr(expression)
    settings = [f"{name}={source(value)}" for name, value in expression.keywords.items()]
    return f"{expression.function}({', '.join([*map(source, expression.arguments), *settings])})"
