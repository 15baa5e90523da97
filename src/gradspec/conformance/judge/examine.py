"""Running a target on a call, and the verdict on each of its results."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import numpy as np

from gradspec.conformance.call import Array, Call, Results
from gradspec.conformance.cases import Case
from gradspec.conformance.judge.expected import expected
from gradspec.conformance.oracle import Judgement, Meaning
from gradspec.conformance.oracle.meaning import Selected
from gradspec.conformance.targets import NotOfferedError, Target
from gradspec.conformance.verdict import Verdict
from gradspec.spec.errors import UnsupportedError

NOTHING_ALLOWED: frozenset[str] = frozenset()


def examine(target: Target, case: Case, allow: AbstractSet[str] = NOTHING_ALLOWED) -> tuple[Call, list[Verdict]]:
    """Judge a case: every result of the call as it stands, and of the target's other ways to make it."""
    call = case.call()
    refusal = target.refusal(case.problem, case.mode)
    if refusal is not None:
        return call, [Verdict("not_offered", detail=refusal)]
    verdicts = judge_call(target, call, allow)
    for variant in target.variants(case.problem, case.mode):
        verdicts += [v for v in judge_call(target, replace(call, variant=variant), allow) if v.kind != "not_offered"]
    return call, verdicts


def judge_call(target: Target, call: Call, allow: AbstractSet[str] = NOTHING_ALLOWED) -> list[Verdict]:
    """Run one call and judge each of its results."""
    before = _copies(call)
    try:
        results = target.run(call)
    except NotOfferedError as why:
        return [Verdict("not_offered", variant=call.variant, detail=str(why))]
    except Exception as error:  # whatever the target raises is its own doing
        return [Verdict("defect", "raised", variant=call.variant, got=f"{type(error).__name__}: {error}")]
    changed = [
        Verdict("defect", "input_changed", name, call.variant, detail=f"the call wrote into its {name}")
        for name, array in _arrays(call).items()
        if not _same_bits(array, before[name])
    ]
    if changed:
        return changed
    return judge_results(target, call, results, allow)


def judge_results(
    target: Target, call: Call, results: Results, allow: AbstractSet[str] = NOTHING_ALLOWED
) -> list[Verdict]:
    """Judge what a call gave. Results that the target leaves out are not judged."""
    meanings = expected(call)
    given = [name for name in meanings if name in results]
    if not given:
        return [Verdict("not_offered", variant=call.variant, detail=f"it gives none of {', '.join(meanings)}")]
    return [_judge(target, call, name, meanings[name], np.asarray(results[name])) for name in given]


def _judge(target: Target, call: Call, name: str, meaning: Meaning | None, got: Array) -> Verdict:
    malformed = _malformed(call, name, meaning, got)
    if malformed is not None:
        return malformed
    if meaning is None:
        return _verdict(call, "undecided", "", name, detail="no theorem bounds the error of this result")
    try:
        judgement = meaning.judge(got, target.arithmetic(call.problem))
    except UnsupportedError as why:
        return _verdict(call, "undecided", "", name, detail=str(why))
    if judgement.passed:
        return _verdict(call, "pass", "", name)
    return _failed(call, name, judgement)


def _malformed(call: Call, name: str, meaning: Meaning | None, got: Array) -> Verdict | None:
    """A result of the wrong shape or dtype, or an index that is none."""
    shape = call.named()[name.partition("_")[2]].shape if meaning is None else meaning.shape
    if got.shape != shape:
        return _verdict(call, "defect", "shape", name, got=str(got.shape), expected=str(shape))
    dtype = call.named()["x"].dtype
    if name == "indices" and got.dtype.kind not in "iu":
        return _verdict(call, "defect", "dtype", name, got=str(got.dtype), expected="an integer dtype")
    if name != "indices" and got.dtype != dtype:
        return _verdict(call, "defect", "dtype", name, got=str(got.dtype), expected=str(dtype))
    return None


def _failed(call: Call, name: str, judgement: Judgement) -> Verdict:
    place = int(np.flatnonzero(~judgement.ok.ravel())[0])
    return _verdict(
        call,
        "defect",
        rule_of(call, name, judgement, place),
        name,
        place=tuple(int(i) for i in np.unravel_index(place, judgement.ok.shape)),
        got=repr(judgement.got.ravel()[place].item()),
        expected=str(judgement.permitted(place)),
        detail=f"{int((~judgement.ok).sum())} of {judgement.ok.size} wrong",
    )


def rule_of(call: Call, name: str, judgement: Judgement, place: int) -> str:
    """The rule that a wrong result breaks at a flat place."""
    if name == "indices":
        return "indices"
    allowed = judgement.permitted(place)
    if allowed.low is None or not np.isfinite(judgement.got.ravel()[place].astype(np.float64)):
        return "special"
    if call.mode == "second":
        return "second"
    if isinstance(judgement.meaning, Selected):
        return f"{call.mode}.selection"
    return f"{call.mode}.sum"


def _verdict(call: Call, kind: str, rule: str, result: str, **more: Any) -> Verdict:
    return Verdict(kind, rule, result, call.variant, **more)


# --- inputs stay as they are -----------------------------------------------------------------------------------------


def _arrays(call: Call) -> dict[str, Array]:
    """Everything the target is given."""
    directions = {f"direction {i}": array for i, array in enumerate(call.directions)}
    cotangent = {} if call.cotangent is None else {"cotangent": call.cotangent}
    return {**call.named(), **directions, **cotangent}


def _copies(call: Call) -> dict[str, Array]:
    return {name: array.copy() for name, array in _arrays(call).items()}


def _same_bits(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()
