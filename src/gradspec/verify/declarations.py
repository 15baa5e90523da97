"""What a VNN-LIB file declares: variables X_0, X_1, … and Y_0, … in version 1.0, tensors of a network in 2.0."""

from __future__ import annotations

import re
from math import prod
from typing import NamedTuple

import numpy as np

from gradspec.saving.strict_json import brief
from gradspec.spec.errors import FormatError, UnsupportedError
from gradspec.verify.property import Port

MOST_VARIABLES = 1 << 21
MOST_AXES = 64

_VARIABLE = re.compile(r"([XY])_(0|[1-9][0-9]{0,8})")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_INTEGER = re.compile(r"\s*[0-9]{1,9}\s*")
_TYPES = (
    *("real", "float16", "bfloat16", "float32", "float64", "bool"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)


class Word(NamedTuple):
    """A word, with what stands in brackets behind it."""

    text: str
    indices: str | None = None

    def __str__(self) -> str:
        return brief(self.text if self.indices is None else f"{self.text}[{self.indices}]")


class DeclaredTensor(NamedTuple):
    port: Port
    is_input: bool
    first: int = 0
    """The number of its first cell among all inputs, or all outputs."""


class Variables:
    """Every variable by the number that terms know it by: i for input i, ~j for output j."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._tensors: dict[str, DeclaredTensor] = {}

    # --- version 1.0 --------------------------------------------------------------------------------------------------

    def declare(self, name: Word) -> None:
        found = _VARIABLE.fullmatch(name.text)
        if found is None or name.indices is not None:
            raise FormatError(f"{name} was found; expected X_0, X_1, … for inputs or Y_0, Y_1, … for outputs")
        if name.text in self._numbers:
            raise FormatError(f"{name} is declared twice")
        if len(self._numbers) >= MOST_VARIABLES:
            raise UnsupportedError(f"more than {MOST_VARIABLES} variables")
        self._numbers[name.text] = int(found[2]) if found[1] == "X" else ~int(found[2])

    def _flat_port(self, letter: str) -> Port:
        """X or Y, of which no index may be missing."""
        size = sum(name[0] == letter for name in self._numbers)
        for place in range(max(size, 1)):
            if f"{letter}_{place}" not in self._numbers:
                raise FormatError(f"{letter}_{place} is not declared; they are counted from 0, without gaps")
        return Port(letter, (size,))

    # --- version 2.0 --------------------------------------------------------------------------------------------------

    def declare_network(self, tensors: list[DeclaredTensor]) -> None:
        if self._tensors:
            raise UnsupportedError("properties of several networks are not supported; join them to one model")
        if {tensor.is_input for tensor in tensors} != {True, False}:
            raise FormatError("a network without inputs or without outputs; declare every one that the model has")
        sizes = {True: 0, False: 0}
        for port, is_input, _ in tensors:
            if port.name in self._tensors:
                raise FormatError(f"{brief(port.name)} is declared twice")
            first = sizes[is_input]
            self._tensors[port.name] = DeclaredTensor(port, is_input, first)
            sizes[is_input] += port.size
            if not port.shape:
                self._numbers[port.name] = first if is_input else ~first
        if sum(sizes.values()) > MOST_VARIABLES:
            raise UnsupportedError(f"tensors of {sum(sizes.values())} numbers; at most {MOST_VARIABLES} are supported")

    # --- both ---------------------------------------------------------------------------------------------------------

    def number_of(self, word: Word) -> int | None:
        """The number that terms know a variable by; None if nothing is called so."""
        number = self._numbers.get(word.text)
        if word.indices is None and (number is not None or word.text not in self._tensors):
            return number
        if word.text not in self._tensors:
            raise FormatError(f"{word} was found; no tensor {brief(word.text)} is declared")
        port, is_input, place = self._tensors[word.text]
        indices = integers(word.indices or "")
        if len(indices) != len(port.shape) or any(i >= size for i, size in zip(indices, port.shape, strict=True)):
            raise FormatError(f"{word} was found; {port.name} has shape {list(port.shape)}, and indices begin at 0")
        place += int(np.ravel_multi_index(indices, port.shape)) if indices else 0
        return place if is_input else ~place

    def name_of(self, place: int) -> str:
        """What the file calls an input."""
        for port, is_input, first in self._tensors.values():
            if is_input and first <= place < first + port.size:
                indices = np.unravel_index(place - first, port.shape) if port.shape else ()
                return f"{port.name}[{','.join(map(str, indices))}]" if port.shape else port.name
        return f"X_{place}"

    def ports(self) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
        """All inputs, and all outputs."""
        if not self._tensors:
            return (self._flat_port("X"),), (self._flat_port("Y"),)
        inputs, outputs = (
            tuple(port for port, is_input, _ in self._tensors.values() if is_input == side) for side in (True, False)
        )
        return inputs, outputs


def declared_tensor(is_input: bool, words: list[Word]) -> DeclaredTensor:
    """``X float32 [1,5]``: a name, an element type and a shape."""
    if len(words) == 3 and words[2] == Word("initialized"):
        raise UnsupportedError(f"{words[0]} is to have the value of an initializer; state its bounds instead")
    if len(words) != 2 or words[0].indices is not None or words[1].indices is None:
        raise FormatError("expected a name, an element type and a shape, such as X float32 [1,5]")
    name, dtype, shape = words[0].text, words[1].text.lower(), integers(words[1].indices)
    if not _NAME.fullmatch(name):
        raise FormatError(f"{brief(name)} was found; expected a name of letters, digits and underscores")
    if dtype not in _TYPES:
        raise UnsupportedError(f"elements of type {brief(dtype)}; those read are {', '.join(_TYPES)}")
    if not 0 < prod(shape) <= MOST_VARIABLES:
        raise UnsupportedError(f"{name} has {prod(shape)} numbers; from 1 to {MOST_VARIABLES} are supported")
    return DeclaredTensor(Port(name, shape, dtype), is_input)


def integers(text: str) -> tuple[int, ...]:
    """What stands in brackets."""
    parts = text.split(",", MOST_AXES) if text.strip() else []
    if not all(_INTEGER.fullmatch(part) for part in parts):
        raise FormatError(f"{brief(text)} in brackets; expected integers from 0 on, with commas, at most {MOST_AXES}")
    return tuple(int(part) for part in parts)
