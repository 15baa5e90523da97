"""Whether a target's own JVP and VJP belong together: the same choice in both, each the transpose of the other.

Where both keep our rules they do, for ours are transposes; so only a result that breaks them is asked. The question is
put on small integers, which every format here adds without rounding: a choice is then told apart by equality.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from flint import fmpq

from gradspec.conformance.judge.conventions import ChoiceRule, any_tied, chosen_meaning, padding_only
from gradspec.conformance.model.problem import Array, Call, Results, laid_out
from gradspec.conformance.model.target import Target
from gradspec.conformance.oracle.expected import expected
from gradspec.conformance.oracle.tolerance import adjoint_tolerance
from gradspec.domains.exact import rational
from gradspec.domains.formats import format_named

SMALL = 5
"""The largest of the integers: bfloat16 holds the sum of fifty."""


def partners(call: Call) -> dict[str, Call]:
    """The JVP, the VJP and the value on the same inputs, along small integers."""
    named = call.named()
    tangents = tuple(_integers(named[name], call) for name in call.problem.differentiable)
    value = replace(call, mode="value", directions=(), cotangent=None)
    y = expected(value)["y"]
    assert y is not None
    cotangent = _integers(np.zeros(y.shape, named["x"].dtype), call, start=2)
    return {
        "jvp": replace(value, mode="jvp", directions=tangents),
        "vjp": replace(value, mode="vjp", cotangent=cotangent),
        "value": value,
    }


def _integers(like: Array, call: Call, start: int = 0) -> Array:
    """1 … ``SMALL`` over and over, with signs of another period, so that neighbours differ."""
    count = np.arange(start, start + like.size)
    numbers = (count % SMALL + 1) * np.where(count % 3 == 1, -1, 1)
    return laid_out(numbers.reshape(like.shape).astype(like.dtype), call.layout, call.problem.rank)


def contradiction(target: Target, call: Call, choice: ChoiceRule) -> str | None:
    """What of the target does not make this choice on the same inputs, or None."""
    made = list(_offered(target, call))
    for mode, partner, results in made:
        for name in ("indices", "dy", "grad_x"):
            if name in results and not _follows(target, partner, name, results[name], choice):
                return f"its {_WORDS[mode]} does not"
    if not made and "all" in (choice.ties, choice.nans):
        return "that is no subgradient, and there is no JVP to say that it is meant"
    return None


_WORDS = {"value": "index", "jvp": "JVP", "vjp": "VJP"}


def _offered(target: Target, call: Call) -> Iterator[tuple[str, Call, Results]]:
    """The other modes that the target offers, with their results."""
    for mode, partner in partners(call).items():
        if mode == call.mode or target.declines(call.problem, mode) is not None:
            continue
        results = _run(target, partner)
        if results is not None:
            yield mode, partner, results


def _run(target: Target, call: Call) -> Results | None:
    known = ("plain", *target.variants(call.problem, call.mode))
    try:
        return target.run(call if call.variant in known else replace(call, variant="plain"))
    except Exception:  # judged where that mode is
        return None


def _follows(target: Target, call: Call, name: str, got: Array, choice: ChoiceRule) -> bool:
    meaning = chosen_meaning(call, name, choice)
    if got.shape != meaning.shape:
        return False
    ok, empty = meaning.judge(got, target.arithmetic(call.problem)).ok, padding_only(call, name)
    return bool((ok if empty is None else ok | empty).all())


def chooses_a_tied_cell(target: Target, call: Call) -> bool:
    """Whether the JVP is that of one tied cell per window, and the VJP its transpose."""
    both = partners(call)
    results = {mode: _run(target, both[mode]) for mode in ("jvp", "vjp")}
    if results["jvp"] is None or results["vjp"] is None:
        return False
    dy, grad = results["jvp"].get("dy"), results["vjp"].get("grad_x")
    if dy is None or grad is None:
        return False
    ours, options = expected(both["jvp"])["dy"], any_tied(both["jvp"], "dy")
    if dy.shape != options.shape or not options.judge(dy).passed:
        return False
    if ours is not None and ours.judge(dy).passed:
        return False  # the choice is ours, and something else is wrong
    cotangent, (tangent,) = both["vjp"].cotangent, both["jvp"].directions
    assert cotangent is not None
    return is_transposed(dy, grad, tangent, cotangent, call.problem.dtype)


def is_transposed(dy: Array, grad: Array, tangent: Array, cotangent: Array, dtype: str) -> bool:
    """⟨ȳ, Jv⟩ = ⟨Jᵀȳ, v⟩, but for the rounding of a sum of integers when it is stored.

    >>> one, two = np.float32([1, 2]), np.float32([3, 4])
    >>> is_transposed(one, two, two, two, "f32"), is_transposed(two, one, one, two, "f32")
    (False, False)
    >>> is_transposed(np.float32([11]), np.float32([2, 4]), two, np.float32([2]), "f32")
    True
    """
    if not (np.isfinite(dy.astype(np.float64)).all() and np.isfinite(grad.astype(np.float64)).all()):
        return False
    ybar, v, jv, jty = (_exactly(array) for array in (cotangent, tangent, dy, grad))
    unit = rational(format_named(dtype).unit)
    stored = adjoint_tolerance(ybar, [unit * abs(e) for e in jv], v, [unit * abs(e) for e in jty])
    gap = _inner(ybar, jv) - _inner(jty, v)
    whole = all(float(e).is_integer() and abs(e) < 1 / unit for e in (*jv, *jty))
    return bool(gap == 0 if whole else abs(gap) <= stored)


def _exactly(array: Array) -> list[fmpq]:
    return [rational(number) for number in array.astype(np.float64).ravel().tolist()]


def _inner(a: list[fmpq], b: list[fmpq]) -> fmpq:
    return sum((x * y for x, y in zip(a, b, strict=True)), fmpq(0))
