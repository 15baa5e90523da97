"""Errors that a target's documentation states."""

from __future__ import annotations

from gradspec.conformance.checks.repeat import describe_error
from gradspec.conformance.model.target import ExpectedError, Target
from gradspec.conformance.model.verdict import Verdict


def missing_errors(target: Target) -> list[tuple[ExpectedError, Verdict]]:
    """The expected errors that are not raised, and what happens instead.

    >>> from gradspec.conformance.targets import target_named
    >>> missing_errors(target_named("native"))
    []
    """
    missing = list[tuple[ExpectedError, Verdict]]()
    for expected in target.expected_errors():
        try:
            outcome = _describe(expected.call())
        except expected.raises:
            continue
        except Exception as error:
            outcome = describe_error(error)
        names, documented = " or ".join(error.__name__ for error in expected.raises), expected.documented
        verdict = Verdict("defect", "promised_error", expected.op, got=outcome, expected=names, detail=documented)
        missing.append((expected, verdict))
    return missing


def _describe(result: object) -> str:
    if isinstance(result, tuple | list):
        return f"({', '.join(map(_describe, result))})"
    shape = getattr(result, "shape", None)
    return repr(result) if shape is None else f"an array of shape {tuple(shape)}"
