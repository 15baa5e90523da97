"""What is said of a target: a verdict on each result, failures as they are met, and findings, which a run reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gradspec.conformance.model.codec import decode, encode
from gradspec.conformance.model.problem import Call

KINDS = ("defect", "convention", "reduced", "undecided", "not_offered", "pass")
"""From worst to best. A finding is a defect, a convention or reduced."""
FINDINGS = KINDS[:3]


@dataclass(frozen=True)
class Verdict:
    """One judgement of one result.

    ``rule`` is a key of ``RULES``; ``place`` is where the result is first wrong;
    ``got`` and ``expected`` say what stands and what may stand there.
    """

    kind: str
    rule: str = ""
    result: str = ""
    variant: str = "plain"
    place: tuple[int, ...] | None = None
    got: str = ""
    expected: str = ""
    detail: str = ""
    setting: str = ""
    """What the call needs beside its arguments to fail: a key of ``gradspec.conformance.checks.SETTINGS``, with the
    difference after it where it needs another call (``after stride``)."""
    about: Call | None = None
    """The call that it is about, where that is not the one of the case."""
    cells: int = 0
    """Of a reference's result that passes."""
    weak: int = 0
    """Of these, those whose enclosure says little."""
    weak_by: str = ""
    """The operator that makes most of them so, where they are many."""


@dataclass(frozen=True)
class Failure:
    """A case that is not as it should be, as it was met: neither shrunk nor explained."""

    call: Call
    verdict: Verdict
    features: tuple[str, ...]
    case: str
    """The name of the case."""

    @staticmethod
    def told(verdict: Verdict, call: Call, features: tuple[str, ...], case: str) -> Failure:
        """By a verdict on the case, or on another call of its neighbourhood."""
        return Failure(verdict.about or call, replace(verdict, about=None), features, case)

    @property
    def judged_call(self) -> Call:
        """The call in the variant that failed."""
        return replace(self.call, variant=self.verdict.variant)

    @property
    def number(self) -> tuple[int, int]:
        """The batch, and the index in it."""
        batch, _, index = self.case.partition(".")
        return int(batch), int(index)


@dataclass(frozen=True)
class Finding:
    """A cause, with its smallest case. The fields of the contract first; ``case`` is the call as plain data."""

    op: str
    mode: str
    kind: str
    features: tuple[str, ...]
    dtype: str
    case: dict[str, Any]
    got: str
    expected: str
    rule: str
    reproducer: str
    explanation: str = ""
    result: str = ""
    variant: str = "plain"
    place: tuple[int, ...] | None = None
    count: int = 1
    """How many cases showed it."""
    seen: tuple[str, ...] = ()
    """Where else it showed: ``op mode dtype`` of the cases of the same cause."""
    causes: tuple[str, ...] = ()
    """The features that it needs: of its smallest case, those that most cases of it have."""
    title: str = ""
    """What is wrong, in one sentence."""
    suspicion: str = ""
    """What a kernel of a reference most likely does instead."""
    follows: bool = False
    """Of a derivative, whether the value is wrong wherever it is."""
    setting: str = ""
    """What the reproducer sets up beside the call: see `Verdict.setting`."""
    reproduced: bool | None = None
    """Whether the reproducer showed it when it was run; None where it was not."""
    verification: str = ""
    """The same in words."""
    programs: Mapping[str, str] = field(default_factory=dict)
    """Reproducers by setting, until one is known to show it."""

    @staticmethod
    def of(verdict: Verdict, op: str, mode: str, **more: Any) -> Finding:
        """What a verdict says, as a finding; without ``more`` it is about no call."""
        shared = ("kind", "got", "expected", "rule", "result", "variant", "place", "setting")
        told = {"op": op, "mode": mode, **{name: getattr(verdict, name) for name in shared}}
        return Finding(**{"features": (), "dtype": "", "case": {}, "reproducer": "", **told, **more})

    @staticmethod
    def about(failure: Failure, **more: Any) -> Finding:
        """What a failure shows, as a finding with its call."""
        call = failure.judged_call
        features = {"features": failure.features, "causes": failure.features}
        case = {**features, "dtype": call.problem.dtype, "case": encode(call)}
        return Finding.of(failure.verdict, call.problem.op, call.mode, **case, **more)

    @property
    def call(self) -> Call:
        return decode(Call, self.case, "case")

    @property
    def where(self) -> str:
        return f"{self.op} {self.mode} {self.dtype}"


@dataclass(frozen=True)
class Probe:
    """One thing measured of the target before it is judged: ``significand bits kept: 24 of 24``."""

    name: str
    op: str
    dtype: str
    result: str
    normal: bool = True
    """Whether this is what the certified tolerance takes for granted."""


# --- rules that a result can break, and how a verdict reads to a person -----------------------------------------------


RULES: dict[str, str] = {
    "value.selection": "The result is one of the numbers of the input, copied bit for bit (Max pooling, Value).",
    "value.sum": "In whatever order its terms are added, the result lies between these ends (Order of arithmetic).",
    "value.exact_sum": "These terms add up without rounding in any order: there is one right result (Order of "
    "arithmetic).",
    "value.smooth": "A smooth maximum is as near to its formula as the arithmetic allows (Smooth max pooling).",
    "indices": "The index is the place of the first of the largest cells, row by row; padding is no cell, and a NaN is "
    "larger than any number (Max pooling, Winner).",
    "jvp.selection": "The tangent of a maximum is that of the cell that won, copied bit for bit (Max pooling, Ties).",
    "jvp.sum": "In whatever order its terms are added, the tangent lies between these ends (Order of arithmetic).",
    "jvp.exact_sum": "The terms of this tangent add up without rounding in any order: there is one right result (Order "
    "of arithmetic).",
    "vjp.hits": "A cell receives the cotangents of the windows that it won, and of no others (Max pooling, Ties).",
    "vjp.sum": "In whatever order its terms are added, the gradient lies between these ends (Order of arithmetic).",
    "vjp.exact_sum": "The terms of this gradient add up without rounding in any order: there is one right result "
    "(Order of arithmetic).",
    "vjp.selection": "A gradient that is gathered is a copy of the cotangent (Gather and scatter at winners).",
    "second": "In second derivatives winners stay winners, and a convolution is linear in each of its inputs (Max "
    "pooling, Ties; Convolution).",
    "spec.sum": "However its operations are ordered, fused or stored on the way, the result lies between these ends "
    "(Tolerance, Graphs).",
    "spec.exact_sum": "On these numbers no operation of the reference rounds: there is one right result (Tolerance, "
    "Graphs).",
    "padding_only": "A window with nothing but padding in it gives 0, the tangent 0 and the index −1, and its "
    "cotangent goes nowhere (Max pooling, Value; Average pooling).",
    "special": "A NaN or an infinity arrives wherever it is read, and nowhere else (Max pooling, Winner; Convolution).",
    "zero_sign": "A maximum that comes with its index has the sign of the zero that won (Max pooling, Value).",
    "shape": "Sizes and attributes determine the shape of the result (Windows).",
    "dtype": "Results have the dtype of the inputs, indices an integer dtype (Integers, booleans and conversion).",
    "raised": "A call that the documentation allows gives a result, not an error (How operators are called).",
    "crash": "A call never ends the process (How operators are called).",
    "poisoned": "A call leaves its device in order: memory that is not its own is neither read nor written (How "
    "operators are called).",
    "hang": "A call ends (How operators are called).",
    "not_repeatable": "The same call gives the same bits every time (Order of arithmetic).",
    "threads": "The number of threads does not change a bit (Order of arithmetic).",
    "state": "A call gives what its arguments determine, whatever was called before it (How operators are called).",
    "concurrent": "Calls from several threads at once give what each gives alone (How operators are called).",
    "guard": "A kernel writes inside the array it was given, and nowhere else (How operators are called).",
    "input_changed": "A call leaves its inputs as they were (How operators are called).",
    "channel": "A kernel returns its results, and says nothing else to the judge (How operators are called).",
    "declined_numbers": "A kernel that takes a shape takes all numbers of it, unless it declares that it does not (How "
    "operators are called).",
    "left_behind": "What a call starts ends with it (How operators are called).",
    "index_range": "An index names a cell of its plane, or is −1 where no window cell is real (Max pooling, Indices).",
    "promised_error": "What the documentation says is an error raises that error (How operators are called).",
    "adjoint": "The VJP is the transpose of the JVP, whatever choice they make: ⟨ȳ, Jv⟩ = ⟨Jᵀȳ, v⟩ (Max pooling, "
    "Ties).",
}
"""By id: what is demanded, with the section of ``docs/semantics.md`` that says so."""


def explain(verdict: Verdict) -> str:
    """A verdict in a few sentences.

    >>> print(explain(Verdict("defect", "hang", "y", place=(0, 1), got="3", expected="2", detail="1 of 4 wrong")))
    y at [0, 1] is 3, expected 2. 1 of 4 wrong. A call ends (How operators are called).
    >>> print(explain(Verdict("defect", "raised", got="TypeError: too many arguments")).partition(" A call")[0])
    TypeError: too many arguments.
    """
    sentences = (state_result(verdict), verdict.detail[:1].upper() + verdict.detail[1:], RULES.get(verdict.rule, ""))
    return " ".join(s if s.endswith((".", ":")) or s == "" else f"{s}." for s in sentences if s)


def state_result(told: Verdict | Finding) -> str:
    """What stands where, and what may stand there: ``y at [0, 1] is 3, expected 2``."""
    where = "" if told.place is None else f" at {list(told.place)}"
    what = f"{told.result}{where} is " if told.result else ""
    parts = (f"{what}{told.got}" if told.got else "", f"expected {told.expected}" if told.expected else "")
    return ", ".join(filter(None, parts))
