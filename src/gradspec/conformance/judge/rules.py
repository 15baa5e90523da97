"""The rules that a result can break, and how a verdict reads to a person."""

from __future__ import annotations

from gradspec.conformance.model.verdict import Finding, Verdict

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
    sentences = (stated(verdict), verdict.detail[:1].upper() + verdict.detail[1:], RULES.get(verdict.rule, ""))
    return " ".join(s if s.endswith((".", ":")) or s == "" else f"{s}." for s in sentences if s)


def stated(told: Verdict | Finding) -> str:
    """What stands where, and what may stand there: ``y at [0, 1] is 3, expected 2``."""
    where = "" if told.place is None else f" at {list(told.place)}"
    what = f"{told.result}{where} is " if told.result else ""
    parts = (f"{what}{told.got}" if told.got else "", f"expected {told.expected}" if told.expected else "")
    return ", ".join(filter(None, parts))
