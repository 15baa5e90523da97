"""A proof in a process of its own, and its answer, as the verification competition words it: unsat, sat or unknown.

The time limit is kept whatever the process does, and its death costs no more than it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import partial
from math import inf, isfinite
from time import monotonic
from typing import Any

import numpy as np

from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array
from gradspec.system.processes import KeptProcess, ProcessLostError, describe, environment, module_child, module_path
from gradspec.verify.property import Port, Property
from gradspec.verify.prove import Result

STARTING = 180.0
"""Seconds that a process may take to start, if the time limit allows."""

Watch = Callable[[dict[str, Any]], None]
"""Told of progress, and of warnings."""


class VerifyError(ValueError):
    """The files or the request are wrong; the message says with what."""


@dataclass(frozen=True)
class Question:
    """One question, as plain data: files, seconds in all, and how to answer."""

    network: str
    property: str
    seconds: float = 60.0
    kernels: str = "any"
    seed: int = 0
    explain: bool = False
    certificate: str | None = None
    """The file that a proof is saved to."""
    device: str = "cpu"


@dataclass(frozen=True)
class SolverSettings:
    """What a process is started for; ``token`` is that of a campaign, with which it ends."""

    threads: int
    token: str = ""


class Solver(KeptProcess):
    """Close it, or use it in ``with closing(...)``."""

    def __init__(self, settings: SolverSettings) -> None:
        found = environment(settings.threads) | module_path()
        super().__init__(partial(module_child, "gradspec.verify.worker", [], found), STARTING)

    def refusal(self, why: str) -> Exception:
        return VerifyError(why)

    def answer(self, question: Question, watch: Watch = lambda _: None, since: float | None = None) -> Answer:
        """The answer, in time: "unknown" where there is none. ``VerifyError`` where a file is wrong."""
        begun, latest = monotonic() if since is None else since, dict[str, Any]()

        def left() -> float:
            return max(0.0, begun + question.seconds - monotonic())

        def unknown(error: str = "") -> Answer:
            parts, margin = latest.get("proved", 0) + latest.get("waiting", 0), latest.get("margin", inf)
            known = margin if isfinite(margin) else None
            return Answer("unknown", monotonic() - begun, parts, known, question.kernels, error=error)

        if question.seconds <= 0:
            return unknown()
        with self._in_use, self._ended_unless_answered():
            try:
                for message in self._messages(question, left):
                    if "answer" in message:
                        return Answer.read(message["answer"] | {"seconds": monotonic() - begun})
                    latest.update(message.get("progress", {}))
                    watch(message)
            except ProcessLostError as loss:
                return unknown("" if loss.status is None and left() == 0 else describe(loss))
        raise AssertionError("messages end with an answer")

    def explanation(self, seconds: float) -> tuple[list[dict[str, Any]] | None, str]:
        """After an answer that is to be explained: views of the roots, or why there are none."""
        if self._child is None:
            return None, "the process had to be stopped before"
        until = monotonic() + seconds
        with self._in_use, self._ended_unless_answered():
            try:
                message = self._receive(seconds)
                while "explained" not in message:
                    message = self._receive(max(0.0, until - monotonic()))
                return message["explained"], message.get("why", "")
            except ProcessLostError as loss:
                return None, describe(loss)

    def _messages(self, question: Question, left: Callable[[], float]) -> Iterator[dict[str, Any]]:
        if self._child is None or self._child.has_ended():
            self._starting = left()
            self._start()
        message = self._ask(left(), **asdict(question) | {"seconds": left()})
        while True:
            if "wrong" in message:
                raise VerifyError(message["wrong"])
            yield message
            message = self._receive(left())

    @contextmanager
    def _ended_unless_answered(self) -> Iterator[None]:
        """Ctrl-C leaves no process behind that still works on something."""
        try:
            yield
        except VerifyError:
            raise
        except BaseException:
            self._end()
            raise


WORDS = {"proved": "unsat", "refuted": "sat", "unknown": "unknown"}
"""The competition asks whether the unsafe set can be reached."""

DIGITS = 40
"""Of a number that no decimal is."""

Witness = tuple[tuple[str, str], ...]
"""Names of inputs and outputs with their numbers."""


@dataclass(frozen=True)
class Answer:
    """``answer`` is "unsat" (proved), "sat" (refuted, with a witness) or "unknown"; ``error`` says what went wrong.

    ``margin`` is that of ``Result``, or None where nothing is known of it.
    """

    answer: str
    seconds: float = 0.0
    parts: int = 0
    margin: float | None = None
    kernels: str = "any"
    witness: Witness = ()
    error: str = ""

    @classmethod
    def of(cls, result: Result, graph: Graph, property: Property) -> Answer:
        witness = () if result.witness is None else format_witness(result.witness, graph, property)
        margin = float(result.margin) if np.isfinite(result.margin) else None
        word = WORDS[result.status]
        return cls(word, result.seconds, result.parts, margin, result.kernels, witness)

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Answer:
        """What ``as_json`` gave."""
        known = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        return cls(**known | {"witness": tuple((name, number) for name, number in fields.get("witness", ()))})

    def as_json(self) -> dict[str, object]:
        return asdict(self)

    def text(self) -> str:
        """The word, and the witness as the competition writes it: ``((X_0 0.5)``, a line for each number.

        >>> print(Answer("sat", witness=(("X_0", "0.5"), ("Y_0", "-1.0"))).text())
        sat
        ((X_0 0.5)
         (Y_0 -1.0))
        """
        pairs = "\n ".join(f"({name} {number})" for name, number in self.witness)
        return f"{self.answer}\n({pairs})" if self.witness else self.answer

    def sentence(self) -> str:
        of = "any kernel" if self.kernels == "any" else "the real network"
        said = {"unsat": f"proved of {of}", "sat": "refuted by the witness", "unknown": "neither proved nor refuted"}
        margin = "" if self.margin is None else f", margin {self.margin:.6g}"
        return f"{said[self.answer]}, in {self.parts} part{'s' * (self.parts != 1)} and {self.seconds:.1f} s{margin}"


def format_witness(witness: Sequence[Array], graph: Graph, property: Property) -> Witness:
    """Inputs as the exact numbers that they are, and what the compiled kernels give for them."""
    computed = graph(*witness)
    outputs = computed if isinstance(computed, tuple) else (computed,)
    flat, values = (np.concatenate([a.reshape(-1) for a in arrays]) for arrays in (witness, outputs))
    nearest = [case.box.nearest(flat) for case in property.cases]
    x = next((x for x in nearest if property.is_counterexample(x, values)), nearest[0])
    inputs = zip(names(property.inputs), map(format_decimal, x), strict=True)
    return (*inputs, *zip(names(property.outputs), (repr(float(y)) for y in values), strict=True))


def format_decimal(number: Fraction) -> str:
    """The number in full, which it has unless it divides by other primes than those of 10.

    >>> [format_decimal(number)[:18] for number in (Fraction(1, 4), Fraction(float(np.float32(0.1))), Fraction(1, 3))]
    ['0.25', '0.1000000014901161', '0.3333333333333333']
    """
    rest = number.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    digits = len(str(number.numerator)) + 4 * number.denominator.bit_length() if rest == 1 else DIGITS
    exact = Context(prec=max(digits, 1)).divide(Decimal(number.numerator), Decimal(number.denominator))
    return f"{exact:f}" if "." in f"{exact:f}" else f"{exact:f}.0"


def names(ports: Sequence[Port]) -> list[str]:
    """``X_0`` in version 1.0 of VNN-LIB, and ``X[0,1]`` in 2.0.

    >>> names([Port("X", (2,))]), names([Port("Z", (1, 2), "float32"), Port("t", (), "float32")])
    (['X_0', 'X_1'], ['Z[0,0]', 'Z[0,1]', 't'])
    """
    found = list[str]()
    for port in ports:
        for place in range(port.size):
            indices = ",".join(map(str, np.unravel_index(place, port.shape))) if port.shape else ""
            tensor = f"{port.name}[{indices}]" if port.shape else port.name
            found.append(f"{port.name}_{place}" if port.dtype == "real" else tensor)
    return found
