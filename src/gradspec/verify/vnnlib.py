r"""Properties in VNN-LIB files, read as if they came from an enemy.

A file says what a counterexample is: it declares inputs and outputs, and a counterexample satisfies every assertion.
The property is that there is none. Version 1.0 is a part of SMT-LIB, with a real variable for each input and output;
version 2.0 declares the tensors of networks. Of 2.0, properties of one network are read, without hidden nodes.
Constants are the decimal numbers that are written, whatever the type of the elements.

>>> stated = read_vnnlib_text('''
...   (declare-const X_0 Real) (declare-const X_1 Real) (declare-const Y_0 Real) (declare-const Y_1 Real)
...   (assert (<= -0.5 X_0 0.5)) (assert (= X_1 0.1))
...   (assert (or (>= Y_0 Y_1) (and (<= (* 2 Y_0) 3e-1) (not (< Y_1 (/ 1 3))))))
... ''')
>>> (case,) = stated.cases
>>> case.box.upper
(Fraction(1, 2), Fraction(1, 10))
>>> [conjunction.C.tolist() for conjunction in case.unsafe]
[[[-1.0, 1.0]], [[2.0, 0.0], [0.0, -1.0]]]

Nothing in a file is evaluated, nothing recurses, and there are limits to its size, to nesting, to numbers and to normal
forms. Assertions that no input can satisfy give a property without cases, which every network has, and a warning.

>>> read_vnnlib_text("(declare-const X_0 Real)\n(assert (<= X_1 0.5))", "my.vnnlib")
Traceback (most recent call last):
gradspec.spec.errors.FormatError: my.vnnlib, line 2, column 13: 'X_1' was found; expected a number or a variable that is declared
"""  # noqa: E501

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, NoReturn

import numpy as np

from gradspec.saving.files import read_bounded
from gradspec.saving.strict_json import brief
from gradspec.spec.errors import FormatError, FormatWarning, UnsupportedError
from gradspec.verify.formulas import ONE, Algebra, Formula, Restriction, Term, cases_of, checked_bits
from gradspec.verify.property import Port, Property, size_of

# --- what is declared -------------------------------------------------------------------------------------------------

MOST_VARIABLES = 1 << 21
MOST_AXES = 64

_VARIABLE = re.compile(r"([XY])_(0|[1-9][0-9]{0,8})")
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
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
    if not _IDENTIFIER.fullmatch(name):
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


MOST_BYTES = 1 << 28
"""Of a file, unpacked."""

MOST_NESTED = 1000
MOST_WORDS = 2_000_000
"""In one command."""

MOST_DIGITS, MOST_EXPONENT = 1100, 400
"""Of a number: a float64 that is written out has up to 1077."""

WORK_TO_KEEP = 10
"""What an inequality is charged that is kept to the end."""


def read_vnnlib(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> Property:
    """The property in a VNN-LIB file, version 1.0 or 2.0, gzipped or not."""
    content, name = read_bounded(path, most_bytes), os.fspath(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8", "replace")
        raise FormatError(f"{name}, {_place(before, len(before))}: this byte is not UTF-8") from None
    return read_vnnlib_text(text, name)


def read_vnnlib_text(text: str, name: str = "VNN-LIB") -> Property:
    """The property that a text of VNN-LIB 1.0 or 2.0 states; ``name`` is what errors call the text."""
    reader = _QueryReader()
    try:
        found = reader.read(text)
    except (FormatError, UnsupportedError) as error:
        raise type(error)(f"{name}, {_place(text, reader.at)}: {error}") from None
    if not found.cases:
        warnings.warn(
            f"{name}: no input satisfies its assertions, so every network has it", FormatWarning, stacklevel=2
        )
    return found


def _place(text: str, at: int) -> str:
    return f"line {text.count(chr(10), 0, at) + 1}, column {at - text.rfind(chr(10), 0, at)}"


# --- what is written --------------------------------------------------------------------------------------------------

_BLANK = r"(?:[ \t\r\n\f]++|;[^\r\n\0]*+)*+"
_WORD = r'[^\s()\[\];,"\0]++'
_INDEXED = rf'({_WORD})(?:{_BLANK}\[([^][()"\0]*+)\])?+'
_DIGITS = r"[+-]?(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?+"
_TOKEN = re.compile(
    rf"""{_BLANK}(?:
        \({_BLANK}assert{_BLANK}\({_BLANK}([<>]=)(?=[\s;]){_BLANK}{_INDEXED}{_BLANK}({_DIGITS}){_BLANK}\){_BLANK}\)
                                          # 1 to 4: a variable and its bound, which most lists are
        | \({_BLANK}({_WORD})             # 5: the beginning of a list, with the word that says what it is
        | (\))                            # 6: its end
        | {_INDEXED}                      # 7 and 8: a word, with indices
        | ("[^"\0]*+")                    # 9: a text
        | (\(){_BLANK}\)                  # 10: an empty list
        | (\Z)                            # 11: the end
        | (.)                             # 12: anything else
    )""",
    re.VERBOSE | re.DOTALL,
)
_BOUND, _HEAD, _CLOSE, _NAME, _INDICES, _TEXT, _EMPTY, _END, _UNKNOWN = range(4, 13)

_NUMBER = re.compile(_DIGITS)
_VERSION = re.compile(r"<([0-9]{1,9})\.[0-9]{1,9}>")

_RELATIONS = {"<=": "<=", ">=": ">=", "<": "<", ">": ">", "=": "=", "==": "=", "!=": "!=", "distinct": "!="}
_TERMS = {"+": Algebra.add, "-": Algebra.subtract, "*": Algebra.multiply, "/": Algebra.divide}
_CONNECTIVES = ("and", "or", "not")
_TENSORS = ("declare-input", "declare-output")
_IGNORED = ("set-logic", "set-info", "set-option", "check-sat", "get-model", "exit")

_INSIDE: dict[str, tuple[str, ...]] = {
    "": ("vnnlib-version", "declare-const", "declare-fun", "declare-network", "assert", *_IGNORED),
    "declare-network": _TENSORS,
    **dict.fromkeys(("assert", *_CONNECTIVES), (*_CONNECTIVES, *_RELATIONS)),
    **dict.fromkeys((*_RELATIONS, *_TERMS), tuple(_TERMS)),
}
"""The lists that may stand in a list, by what they begin with; the file is a list that begins with nothing."""

_UNSUPPORTED = {
    "declare-hidden": "hidden nodes are not supported; make them outputs of the network",
    **dict.fromkeys(("equal-to", "isomorphic-to"), "several networks are not supported; join them to one model"),
    **dict.fromkeys(("=>", "xor", "ite"), "it is not supported; write it with and, or and not"),
    **dict.fromkeys(("let", "define-fun", "define-const"), "it is not supported; write out what it defines"),
}


class OpenList(NamedTuple):
    """A list whose end has not been read; ``holds`` is False for a formula that is asserted not to hold."""

    head: str
    items: list[Any]
    at: int = 0
    holds: bool = True

    @property
    def inner_holds(self) -> bool:
        return self.holds != (self.head == "not")


@lru_cache(1 << 12)
def _number(text: str) -> Fraction:
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise FormatError(f"{brief(text)} was found; expected a number or a variable that is declared")
    exponent = text.lower().partition("e")[2] or "0"
    if len(text) > MOST_DIGITS or len(exponent) > 5 or abs(int(exponent)) > MOST_EXPONENT:
        raise UnsupportedError(
            f"the number {brief(text)}; at most {MOST_DIGITS} characters and exponents up to {MOST_EXPONENT} are read"
        )
    number = Fraction(Decimal(text))
    checked_bits(number)
    return number


# --- what is meant ----------------------------------------------------------------------------------------------------


class _QueryReader:
    """What has been read of a text so far; ``at`` is the place that an error is about."""

    def __init__(self) -> None:
        self.at = 0
        self._open = [OpenList("", [])]
        self._words = 0
        self._version: int | None = None
        self._variables, self._algebra = Variables(), Algebra()
        self._common, self._choices = Restriction(), list[Formula]()
        self._actions: dict[str, Callable[[OpenList], Any]] = {
            **dict.fromkeys(_RELATIONS, self._compare),
            **dict.fromkeys(_TERMS, self._compute),
            **dict.fromkeys(_CONNECTIVES, self._connect),
            **dict.fromkeys(_TENSORS, lambda done: declared_tensor(done.head == "declare-input", done.items)),
            **dict.fromkeys(_IGNORED, lambda done: None),
            "assert": self._assert,
            "declare-const": self._declare,
            "declare-fun": self._declare,
            "declare-network": self._declare_network,
            "vnnlib-version": self._set_version,
        }

    def read(self, text: str) -> Property:
        for found in _TOKEN.finditer(text):
            kind = found.lastindex or _END
            self.at = found.start(_NAME if kind == _INDICES else kind)
            if kind == _BOUND:
                self._bound(found)
            elif kind == _HEAD:
                self._begin(found[_HEAD])
            elif kind == _CLOSE:
                self._close()
            elif kind == _UNKNOWN:
                raise FormatError(f"{brief(found[_UNKNOWN])} was found; expected ( with a word, ), a name or a number")
            elif kind != _END:
                self._take(Word(found[_NAME] or found[_TEXT] or "()", found[_INDICES]))
        return self._property()

    def _property(self) -> Property:
        if len(self._open) > 1:
            self.at = self._open[-1].at
            raise FormatError(f"({self._open[-1].head} is not closed; expected ) before the end")
        inputs, outputs = self._variables.ports()
        formula = self._algebra.all_of(self._choices)
        cases = cases_of(self._common, formula, size_of(inputs), size_of(outputs), self._variables.name_of)
        return Property(inputs, outputs, cases)

    # --- lists --------------------------------------------------------------------------------------------------------

    def _begin(self, head: str) -> None:
        outer = self._open[-1]
        if head not in _INSIDE.get(outer.head, ()):
            self._refuse(head, outer.head)
        if len(self._open) > MOST_NESTED:
            raise UnsupportedError(f"lists are nested more than {MOST_NESTED} deep")
        if not outer.head:
            self._words = 0
            if head != "vnnlib-version":
                self._version = self._version or 1
        self._open.append(OpenList(head, [], self.at, outer.inner_holds))

    def _refuse(self, head: str, outer: str) -> NoReturn:
        if head in _UNSUPPORTED:
            raise UnsupportedError(f"({head} was found; {_UNSUPPORTED[head]}")
        expected = ", ".join(f"({inner}" for inner in _INSIDE.get(outer, ())) or ")"
        raise FormatError(f"{brief('(' + head)} was found; expected {expected}")

    def _close(self) -> None:
        if len(self._open) == 1:
            raise FormatError("')' was found, and no list is open")
        done = self._open.pop()
        self.at = done.at
        value = self._actions[done.head](done)
        if self._open[-1].head:
            self._open[-1].items.append(value)

    def _take(self, word: Word) -> None:
        """A word is an item of the list that it stands in: as a term, a formula, or a word of a declaration."""
        self._words += 1
        if self._words > MOST_WORDS:
            raise UnsupportedError(f"more than {MOST_WORDS} names and numbers in one list")
        inside = self._open[-1]
        if inside.head in _RELATIONS or inside.head in _TERMS:
            inside.items.append(self._term(word))
        elif inside.head == "assert" or inside.head in _CONNECTIVES:
            if word.text not in ("true", "false"):
                raise FormatError(f"{word} was found; expected a formula, such as (<= Y_0 1.0)")
            inside.items.append([[]] if (word.text == "true") == inside.inner_holds else [])
        elif not inside.head:
            raise FormatError(f"{word} was found; expected (assert or another list")
        else:
            inside.items.append(word)

    # --- formulas -----------------------------------------------------------------------------------------------------

    def _term(self, word: Word) -> Term:
        variable = self._variables.number_of(word)
        if variable is not None:
            return {variable: ONE}
        number = _number(word.text)
        return {None: number} if number else {}

    def _compute(self, done: OpenList) -> Term:
        least = 2 if done.head == "/" else 1
        if len(done.items) < least:
            raise FormatError(f"({done.head} of {len(done.items)} terms; expected {least} or more")
        return _TERMS[done.head](self._algebra, done.items)

    def _compare(self, done: OpenList) -> Formula:
        relation, count = _RELATIONS[done.head], len(done.items)
        if count < 2 or (count > 2 and relation == "!="):
            raise FormatError(f"({done.head} of {count} terms; expected 2")
        return self._algebra.compare(relation, done.items, done.holds)

    def _connect(self, done: OpenList) -> Formula:
        if not done.items or (done.head == "not" and len(done.items) > 1):
            raise FormatError(f"({done.head} of {len(done.items)} formulas; expected 1")
        if (done.head == "or") == done.holds:  # or it is "and" to be negated, whose parts have been negated
            return self._algebra.any_of(done.items)
        return self._algebra.all_of(done.items)

    def _bound(self, found: re.Match[str]) -> None:
        """``(assert (<= X_0 0.5))``: what the general way comes to, which takes several times as long."""
        self.at = found.start(2)
        if len(self._open) > 1:
            self._refuse("assert", self._open[-1].head)
        self._version = self._version or 1
        word = Word(found[2], found[3])
        place = self._variables.number_of(word)
        left: Term = {None: _number(word.text)} if place is None else {place: ONE}
        self.at = found.start(_BOUND)
        number = _number(found[_BOUND])
        if place is not None and place >= 0:
            self._common.tighten(place, found[1] == "<=", number)
        else:
            formula = self._algebra.compare(found[1], [left, {None: number}], True)
            self._assert(OpenList("assert", [formula]))

    def _assert(self, done: OpenList) -> None:
        if len(done.items) != 1:
            raise FormatError(f"(assert of {len(done.items)} formulas; expected 1")
        (formula,) = done.items
        known = len(self._common.rows)
        if len(formula) == 1:
            self._common.add(formula[0])
        else:
            self._choices.append(formula)
            known -= sum(map(len, formula), 1)
        self._algebra.spend(WORK_TO_KEEP * (len(self._common.rows) - known))

    # --- declarations -------------------------------------------------------------------------------------------------

    def _declare(self, done: OpenList) -> None:
        expected = [Word("()"), Word("Real")] if done.head == "declare-fun" else [Word("Real")]
        if self._version == 2:
            raise FormatError(f"({done.head} is of version 1.0; in 2.0, expected (declare-network")
        if not done.items or done.items[1:] != expected:
            shown = " ".join(word.text for word in expected)
            raise FormatError(f"({done.head} with other words than expected: ({done.head} X_0 {shown})")
        self._variables.declare(done.items[0])

    def _declare_network(self, done: OpenList) -> None:
        if self._version != 2:
            raise FormatError("(declare-network is of version 2.0; expected (vnnlib-version <2.0>) before")
        if [type(item) for item in done.items] != [Word, *[DeclaredTensor] * (len(done.items) - 1)]:
            raise FormatError("(declare-network with other words than expected: a name, then inputs and outputs")
        self._variables.declare_network(done.items[1:])

    def _set_version(self, done: OpenList) -> None:
        found = _VERSION.fullmatch(done.items[0].text) if len(done.items) == 1 else None
        if found is None:
            raise FormatError("(vnnlib-version without its number; expected (vnnlib-version <2.0>)")
        if self._version is not None:
            raise FormatError("(vnnlib-version was found; expected once, before all else")
        self._version = int(found[1])
        if self._version not in (1, 2):
            raise UnsupportedError(f"version {found[0]} of VNN-LIB; 1.0 and 2.x are read")
