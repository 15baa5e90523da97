"""Errors that a target's documentation states."""

from __future__ import annotations

from gradspec.conformance.checks.repeat import in_words
from gradspec.conformance.model.target import ExpectedError, Target
from gradspec.conformance.model.verdict import Verdict


def missing_errors(target: Target) -> list[tuple[ExpectedError, Verdict]]:
    """The expected errors that are not raised, and what happens instead.

    >>> from gradspec.conformance.targets import target_named
    >>> missing_errors(target_named("native"))
    []
    """
    outcomes = ((expected, _other_outcome(expected)) for expected in target.expected_errors())
    return [(expected, _verdict(expected, outcome)) for expected, outcome in outcomes if outcome is not None]


def _other_outcome(expected: ExpectedError) -> str | None:
    """The result or error in place of the expected error; None where that is raised."""
    try:
        result = expected.call()
    except expected.raises:
        return None
    except Exception as error:
        return in_words(error)
    return _describe(result)


def _describe(result: object) -> str:
    if isinstance(result, tuple | list):
        return f"({', '.join(map(_describe, result))})"
    shape = getattr(result, "shape", None)
    return repr(result) if shape is None else f"an array of shape {tuple(shape)}"


def _verdict(expected: ExpectedError, outcome: str) -> Verdict:
    names = " or ".join(error.__name__ for error in expected.raises)
    return Verdict("defect", "promised_error", expected.op, got=outcome, expected=names, detail=expected.documented)
