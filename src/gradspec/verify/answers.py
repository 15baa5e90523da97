"""What is said of a network and a property, as the verification competition words it: unsat, sat or unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array
from gradspec.verify.property import Port, Property
from gradspec.verify.prove import Result

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

    def as_json(self) -> dict[str, Any]:
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
