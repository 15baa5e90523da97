"""A second reading of VNN-LIB, for tests: assertions are evaluated at a point, recursively, as they are written."""

import re
from fractions import Fraction
from functools import reduce
from itertools import pairwise
from math import prod
from operator import eq, ge, gt, le, lt, ne, sub, truediv

TOKEN = re.compile(r'\s+|;[^\n]*|([()]|"[^"]*"|[^\s()\[\];"]+(?:\s*\[[^\]]*\])?)')
RELATIONS = {"<=": le, "<": lt, ">=": ge, ">": gt, "=": eq, "==": eq, "!=": ne, "distinct": ne}


def parsed(text):
    """Nested lists of words."""
    stack = [[]]
    for word in filter(None, TOKEN.findall(text)):
        if word == "(":
            stack.append([])
        elif word == ")":
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(re.sub(r"\s", "", word))
    (found,) = stack
    return found


def value(term, point):
    if isinstance(term, str):
        return point[term] if term in point else Fraction(term)
    head, *parts = term
    numbers = [value(part, point) for part in parts]
    if head == "-":
        return reduce(sub, numbers) if len(numbers) > 1 else -numbers[0]
    return {"+": sum, "*": prod, "/": lambda several: reduce(truediv, several)}[head](numbers)


def is_true(formula, point):
    if isinstance(formula, str):
        return {"true": True, "false": False}[formula]
    head, *parts = formula
    if head in RELATIONS:
        numbers = [value(part, point) for part in parts]
        return all(RELATIONS[head](left, right) for left, right in pairwise(numbers))
    truths = [is_true(part, point) for part in parts]
    return {"and": all, "or": any, "not": lambda several: not several[0]}[head](truths)


def is_satisfied(text, point):
    """Whether every assertion of a text is true at a point."""
    return all(is_true(command[1], point) for command in parsed(text) if command[0] == "assert")


def names_of(found):
    """What a text calls the inputs and outputs of a property, in their order."""

    def names(ports, is_flat):
        for port in ports:
            if is_flat:
                yield from (f"{port.name}_{place}" for place in range(port.size))
            elif not port.shape:
                yield port.name
            else:
                places = reduce(lambda some, size: [(*p, i) for p in some for i in range(size)], port.shape, [()])
                yield from (f"{port.name}[{','.join(map(str, place))}]" for place in places)

    is_flat = all(port.dtype == "real" and port.name in ("X", "Y") for port in (*found.inputs, *found.outputs))
    return list(names(found.inputs, is_flat)), list(names(found.outputs, is_flat))
