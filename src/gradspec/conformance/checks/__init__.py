"""What is checked beside the results themselves, on some of the cases.

A check looks at one call and says what is wrong; `check_again` makes the checks of a rule on any call, for shrinking.
Judging a case, `examine`, is judging its results and making the checks whose turn it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from gradspec.conformance.cases.data import drawn
from gradspec.conformance.checks import guards, repeat, state
from gradspec.conformance.checks.repeat import describe_error
from gradspec.conformance.judge.verdicts import NOTHING_ALLOWED, Judge, judge_conduct
from gradspec.conformance.model.case import CheckCase
from gradspec.conformance.model.device import ExhaustedError
from gradspec.conformance.model.problem import ON_NANS, Call
from gradspec.conformance.model.target import Answer, ExpectedError, Target
from gradspec.conformance.model.verdict import Verdict
from gradspec.system.hosting import ChannelError, LeftBehindError

COSTLY = frozenset({"large", "long_sum"})
"""Features of cases that take long enough for one run."""


@dataclass(frozen=True)
class Check:
    """One check, made on some cases."""

    look: Callable[[Target, Call], list[Verdict]]
    offset: int
    rules: tuple[str, ...]
    """What it may say is broken."""
    every: int = 5
    looks_around: bool = False
    """Whether it makes other calls beside the case's own."""
    every_costly: int = 20

    def applies(self, case: CheckCase) -> bool:
        # Batches have their modes and numbers in the same order, so the place in a batch alone would meet few of them.
        period = self.every_costly if COSTLY & case.features else self.every
        return (case.batch + case.index) % period == self.offset


CHECKS = (
    Check(repeat.repeatability, 0, ("not_repeatable", "guard")),
    Check(repeat.threads, 1, ("threads",), every_costly=5),  # what is small may have one thread anyway
    Check(guards.inputs, 2, ("guard", "crash")),
    Check(guards.outputs, 3, ("guard", "input_changed", "raised", "crash")),
    Check(state.neighbouring, 4, ("state",), looks_around=True),
    Check(state.together, 3, ("concurrent",), every=15, every_costly=60, looks_around=True),
)


SETTINGS: dict[str, Callable[[Target, Call, str], list[Verdict]]] = {
    **dict.fromkeys(("after", "around"), state.in_setting),
    **dict.fromkeys(guards.PLACES, guards.judge_placed),
    "together": lambda target, call, _: state.together(target, call),
    "out": lambda target, call, _: guards.outputs(target, call),
    ON_NANS: lambda target, call, _: guards.unwritten(target, call),
    "threads": lambda target, call, _: repeat.threads(target, call),
    **dict.fromkeys(repeat.SETTINGS, lambda target, call, _: repeat.repeatability(target, call)),
}
"""What a call may need beside its arguments to fail, by the first word, and how it is made so."""
DEADLY = (*guards.PLACES, "out")
"""The settings in which a call may end the process that it survives by itself."""


def check_again(target: Target, call: Call, rule: str, setting: str = "") -> list[Verdict]:
    """The call in its setting; without one, the checks that may say a rule is broken."""
    if setting:
        made = SETTINGS[setting.partition(" ")[0]]
        return _look(lambda target, call: made(target, call, setting), target, call)
    return [verdict for check in CHECKS if rule in check.rules for verdict in _look(check.look, target, call)]


def _look(look: Callable[[Target, Call], list[Verdict]], target: Target, call: Call) -> list[Verdict]:
    """What a check says; nothing where a device had no room for it."""
    try:
        return look(target, call)
    except ExhaustedError:
        return []
    except (ChannelError, LeftBehindError) as why:
        return [judge_conduct(why, call.variant)]


@dataclass(frozen=True)
class Prepared:
    """A case with its numbers, and what was called before it is judged: nothing, or all ways to make the call."""

    case: CheckCase
    call: Call
    answers: Mapping[str, Answer] = field(default_factory=dict)

    @staticmethod
    def together(target: Target, cases: Sequence[CheckCase]) -> list[Prepared]:
        """Cases whose calls are made at once, so that small ones do not wait for a device one by one."""
        drawn_cases = [(case, drawn(case)) for case in cases]
        asked = [
            (number, replace(call, variant=variant))
            for number, (case, call) in enumerate(drawn_cases)
            if target.declines(case.problem, case.mode) is None
            for variant in ways(target, case, call)
        ]
        answers: list[dict[str, Answer]] = [{} for _ in cases]
        for (number, call), answer in zip(asked, target.run_all([call for _, call in asked]), strict=True):
            answers[number][call.variant] = answer
        return [Prepared(case, call, found) for (case, call), found in zip(drawn_cases, answers, strict=True)]


def ways(target: Target, case: CheckCase, call: Call) -> tuple[str, ...]:
    """The variants of a call that are judged: all that the target has, or where the case is quick one, more often one
    of the first."""
    variants = (call.variant, *target.variants(case.problem, case.mode))
    rest, one = divmod(case.seed, len(variants))
    return (variants[min(one, rest % len(variants))],) if case.is_quick else variants


def examine(
    target: Target, given: CheckCase | Prepared, allow: AbstractSet[str] = NOTHING_ALLOWED
) -> tuple[Call, list[Verdict]]:
    """Judge a case: every result of the call as it stands, and of the target's other ways to make it."""
    prepared = given if isinstance(given, Prepared) else Prepared(given, drawn(given))
    case, call = prepared.case, prepared.call
    refusal = target.declines(case.problem, case.mode)
    if refusal is not None:
        return call, [Verdict("not_offered", detail=refusal)]
    judge = Judge(target, call, allow, prepared.answers)
    first, *others = ways(target, case, call)
    verdicts = judge.verdicts(first)
    if case.is_quick:
        return call, verdicts
    for variant in others:
        verdicts += [verdict for verdict in judge.verdicts(variant) if verdict.kind != "not_offered"]
    if not any(verdict.rule == "input_changed" for verdict in verdicts):  # the checks compare runs on one input
        is_wrong = any(verdict.kind == "defect" for verdict in verdicts)  # and then other calls are as well
        due = [check for check in CHECKS if check.applies(case) and not (is_wrong and check.looks_around)]
        verdicts += [verdict for check in due for verdict in _look(check.look, target, call)]
        if any(v.kind == "defect" for v in verdicts) and (unwritten := _look(guards.unwritten, target, call)):
            told = {verdict.result for verdict in unwritten}
            verdicts = [verdict for verdict in verdicts if verdict.result not in told] + unwritten
    judge.snapshot.restore()
    return call, verdicts


# --- errors that a target's documentation states ----------------------------------------------------------------------


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
