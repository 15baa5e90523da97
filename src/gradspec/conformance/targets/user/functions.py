"""A user's functions: which operators they are, and how their signatures want to be called."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import takewhile
from typing import Any

import numpy as np

from gradspec.conformance.model.geometry import default_attributes, is_usual, with_defaults
from gradspec.conformance.model.problem import INPUTS, Array, Call, Problem
from gradspec.conformance.model.target import NotOfferedError

SUFFIXES = {"value": "", "jvp": "_jvp", "vjp": "_vjp", "second": "_vjp_vjp"}
NAME = re.compile(rf"({'|'.join(INPUTS)})(?:([1-9])d)?({'|'.join(s for s in SUFFIXES.values() if s)})?")


def functions_of(given: Any, op: str | None) -> list[UserFunction]:
    """The operators in what was given."""
    if op is not None:
        return [_as_named(given, op)]
    if isinstance(given, Mapping):
        named: Iterator[tuple[str, Any]] = ((str(name), value) for name, value in given.items())
    elif (name := getattr(given, "__name__", "")) and NAME.fullmatch(name) and callable(given):
        named = iter([(name, given)])
    else:
        named = ((name, getattr(given, name)) for name in dir(given) if NAME.fullmatch(name))
    return [_as_named(value, name) for name, value in named if NAME.fullmatch(name) and callable(value)]


def derivative_of(functions: list[UserFunction], mode: str, derivative: Any) -> UserFunction:
    """A derivative that is given beside the one function it belongs to."""
    if len(functions) != 1:
        raise ValueError(f"{mode}= belongs to one function, and there are {len(functions)}; put it beside them")
    return _as_named(derivative, functions[0].name + SUFFIXES[mode])


def _as_named(function: Any, name: str) -> UserFunction:
    match = NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not an operator that is judged; the operators are {', '.join(INPUTS)}")
    if not callable(function):
        raise TypeError(f"the kernel for {name} is {function!r}, which cannot be called; give a function")
    mode = next(mode for mode, suffix in SUFFIXES.items() if suffix == (match[3] or ""))
    found = UserFunction(function, name, match[1], mode, int(match[2]) if match[2] else None)
    found.require_known_attributes()
    return found


# --- one function -----------------------------------------------------------------------------------------------------

LIKE_AN_ATTRIBUTE, LIKE_NO_ARRAY = 0.8, 0.6
"""How alike a parameter's name and an attribute's are, as difflib counts, if one is meant to be the other: in the place
of an array, which may have any name, and behind all of them."""
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class UserFunction:
    """A user's function, and what its signature says of it."""

    function: Callable[..., Any]
    name: str
    op: str
    mode: str
    rank: int | None

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Those of its signature; a function that hides it is believed to take everything."""
        try:
            return inspect.signature(self.function).parameters
        except (TypeError, ValueError):
            everything = (("arrays", inspect.Parameter.VAR_POSITIONAL), ("attributes", inspect.Parameter.VAR_KEYWORD))
            return {name: inspect.Parameter(name, kind) for name, kind in everything}

    def takes(self, keyword: str) -> bool:
        parameter = self.parameters.get(keyword)
        return self._has(inspect.Parameter.VAR_KEYWORD) if parameter is None else parameter.kind in NAMED

    def _has(self, kind: Any) -> bool:
        return any(p.kind is kind for p in self.parameters.values())

    def _is_attribute(self, name: str) -> bool:
        return name in default_attributes(self.op) or name in ("return_indices", "out")

    @cached_property
    def slots(self) -> tuple[inspect.Parameter, ...]:
        """The parameters for arrays."""
        kinds = (*NAMED, inspect.Parameter.POSITIONAL_ONLY)
        return tuple(p for p in self.parameters.values() if p.kind in kinds and not self._is_attribute(p.name))

    def require_known_attributes(self) -> None:
        """Say so if a parameter is a misspelt attribute; it would be given an array, or left at its default."""
        arrays = _array_names(self.op, self.mode)
        for i, slot in enumerate(self.slots):
            alike = LIKE_AN_ATTRIBUTE if i < len(arrays) else LIKE_NO_ARRAY
            meant = (
                get_close_matches(slot.name, default_attributes(self.op), 1, alike) if slot.name not in arrays else []
            )
            if meant:
                what = f"{self.name} takes `{slot.name}`, which is no attribute of {self.op}"
                raise ValueError(f"{what}; did you mean {meant[0]}?")

    def refusal(self, problem: Problem) -> str | None:
        """Why the signature has no place for the problem."""
        for name in default_attributes(self.op):
            if name == "rank" and self.rank is not None:
                continue
            usual = is_usual(self.op, problem.rank, problem.attributes, name)
            if not usual and not self.takes(name):
                return f"{self.name} takes no {name}"
        names, missing = _array_names(self.op, self.mode), {*INPUTS[self.op]} - {*problem.named_shapes()}
        try:
            self._placed(dict.fromkeys(names), [name for name in names if name.removeprefix("d") not in missing])
        except NotOfferedError as why:
            return str(why)
        return None

    def __call__(self, call: Call, **more: Any) -> Any:
        """The function on the arrays of a call."""
        arrays = _arrays(call)
        in_order, by_name = self._placed(arrays, [name for name, array in arrays.items() if array is not None])
        attributes = {n: v for n, v in self.attributes(call.problem).items() if n not in by_name} | more
        with np.errstate(all="ignore"):  # NaN and overflow are what some cases are about
            return self.function(*in_order, **by_name, **attributes)

    def arguments(self, call: Call, spelled: Callable[[str], str] = str) -> list[str]:
        """The arrays as a program passes them: by position as long as they stand first, then by name."""
        arrays = _arrays(call)
        texts = {name: "None" if array is None else spelled(name) for name, array in arrays.items()}
        in_order, by_name = self._placed(texts, [name for name, array in arrays.items() if array is not None])
        positional = [p.name for p in self.parameters.values() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
        leading = list(takewhile(by_name.__contains__, positional))
        named = [f"{name}={text}" for name, text in by_name.items() if name not in leading]
        return [*in_order, *(by_name[name] for name in leading), *named]

    def attributes(self, problem: Problem) -> dict[str, Any]:
        """The attributes that the function is given."""
        every = with_defaults(problem.op, problem.rank, problem.attributes)
        if self.rank is not None:
            every.pop("rank", None)
        return {name: value for name, value in every.items() if self.takes(name)}

    def _placed(self, arrays: Mapping[str, Any], needed: list[str]) -> tuple[list[Any], dict[str, Any]]:
        """The arrays, or texts in their stead, by position, or by the parameters' names where that is not enough."""
        if self._has(inspect.Parameter.VAR_POSITIONAL):
            return [*arrays.values()], {}
        by_name = all(slot.name in arrays for slot in self.slots)
        fits = len(self.slots) >= len(arrays) or by_name
        order = list(arrays) if fits else [name for name in arrays if name in needed]
        pairs = [(s, s.name) for s in self.slots] if by_name else list(zip(self.slots, order, strict=False))
        self._require_room([name for _, name in pairs], needed)
        in_order = [arrays[name] for slot, name in pairs if slot.kind is inspect.Parameter.POSITIONAL_ONLY]
        return in_order, {slot.name: arrays[name] for slot, name in pairs if slot.kind in NAMED}

    def _require_room(self, taken: list[str], needed: list[str]) -> None:
        for name in needed:
            if name not in taken:
                raise NotOfferedError(f"{self.name} takes no {name}")
        for slot in self.slots[len(taken) :]:
            if slot.default is inspect.Parameter.empty:
                lacks = f"{self.name} needs {slot.name!r}, which gs.spec.{self.op} does not have"
                raise NotOfferedError(f"{lacks}; its attributes are {', '.join(default_attributes(self.op))}")


def _array_names(op: str, mode: str) -> tuple[str, ...]:
    """The arrays that a function takes, in order."""
    inputs = INPUTS[op]
    cotangent = ("g",) if mode in ("vjp", "second") else ()
    directions = tuple(f"d{name}" for name in inputs if name != "indices") if mode in ("jvp", "second") else ()
    return (*inputs, *cotangent, *directions)


def _arrays(call: Call) -> dict[str, Array | None]:
    found = call.arrays()
    return {name: found.get(name) for name in _array_names(call.problem.op, call.mode)}
