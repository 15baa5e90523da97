"""Choices that others make where the specification makes another: each one is a meaning of its own.

A result that breaks our rules and keeps those of one such choice everywhere is a convention, if the target documents
it, or if nothing else that the target computes contradicts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from flint import fmpq

from gradspec.backends.tables import PADDING, hits, take
from gradspec.conformance.model.geometry import geometry_of
from gradspec.conformance.model.problem import SELECTIONS, Array, Call, Results, lay_out
from gradspec.conformance.model.target import Target
from gradspec.conformance.oracle import Judgement, Meaning
from gradspec.conformance.oracle.expected import expected
from gradspec.conformance.oracle.meaning import Bools, Floats, Selected, format_of, lowest, planes_of
from gradspec.conformance.oracle.pool import Winners
from gradspec.conformance.oracle.tolerance import adjoint_tolerance
from gradspec.domains.exact import rational
from gradspec.domains.formats import format_named
from gradspec.spec.window import Window

CONVENTIONS: dict[str, str] = {
    "last_tie": "the last of equal cells wins",
    "all_ties": "every one of equal cells gets the whole derivative",
    "split_ties": "equal cells share the derivative evenly",
    "another_tie": "one of the equal cells wins, neither always the first nor always the last",
    "last_nan": "the last NaN of a window wins",
    "all_nans": "every NaN of a window gets the whole derivative",
    "split_nans": "the NaNs of a window share the derivative evenly",
    "nan_ignored": "a NaN loses against every number",
    "padding_competes": "padding competes as the lowest number, and wins where it comes first and no cell is higher",
    "padding_only_minus_inf": "a window without a real cell is −∞",
    "padding_only_lowest": "a window without a real cell is the lowest finite number",
    "padding_only_nan": "a window without a real cell is NaN",
    "padding_only_value": "a window without a real cell has some other value, always the same",
    "padding_only_index": "a window without a real cell has an index that names a real cell",
    "padding_is_skipped": "padding is left out of a sum, even where it would meet a non-finite weight",
    "zero_sign": "the sign of a zero is not the winner's",
    "algorithm_spreads": "non-finite values and overflows spread over everything that the algorithm mixes",
    "another_subgradient": "at a kink, another value between the derivatives on either side",
    "unpool_overwrites": "where several cells are unpooled to one position, one of them is kept",
}
"""By name: what is chosen."""

NEEDS_DOCUMENTATION = frozenset({"nan_ignored", "unpool_overwrites", "padding_only_value"})
"""What no user expects: a NaN that disappears, numbers that are lost, a maximum of nothing that is any number."""


# --- how a window chooses --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChoiceRule:
    """A rule of choosing among the cells of a window; as it stands, ours."""

    ties: str = "first"
    nans: str = "first"
    padding: str = "absent"

    @property
    def names(self) -> tuple[str, ...]:
        """The conventions in which it differs from ours."""
        ties, nans = _TIE_NAMES.get(self.ties, ""), _NAN_NAMES.get(self.nans, "")
        return tuple(name for name in (ties, nans, "padding_competes" * (self.padding != "absent")) if name)

    @property
    def share(self) -> str:
        """How the oracle is told to treat the cells that are chosen: one alone, all wholly, or evenly."""
        return next((rule for rule in ("all", "split") if rule in (self.ties, self.nans)), "first")


_TIE_NAMES = {"last": "last_tie", "all": "all_ties", "split": "split_ties"}
_NAN_NAMES = {"last": "last_nan", "all": "all_nans", "split": "split_nans", "ignored": "nan_ignored"}


def choices() -> Iterator[ChoiceRule]:
    """Every rule but ours, those that differ least first."""
    every = product(("first", *_TIE_NAMES), ("first", *_NAN_NAMES), ("absent", "lowest"))
    mixed = [ChoiceRule(*parts) for parts in every if not {"all", "split"} <= set(parts)]
    return iter(sorted((choice for choice in mixed if choice.names), key=lambda choice: len(choice.names)))


class Chosen(Winners):
    """Who wins by another rule: the oracle's winners, with the tied cells narrowed to those that it chooses."""

    def __init__(self, call: Call, choice: ChoiceRule) -> None:
        self.choice = choice
        super().__init__(call.named()["x"], _windows(call), call.problem.keepdims)

    def _largest(self, cells: Array, real: Bools) -> Bools:
        nans = np.isnan(cells) & real
        competing = real
        if self.choice.nans == "ignored":
            competing = real & (~nans | (nans == real).all(axis=-1, keepdims=True))
        if self.choice.padding == "lowest":
            cells = np.where(self.taps == PADDING, lowest(cells.dtype), cells)
            competing = competing | (self.taps == PADDING)
        tied = super()._largest(cells, competing)
        has_nan = (tied & nans).any(axis=-1, keepdims=True)
        return np.where(has_nan, _narrow(tied, self.choice.nans), _narrow(tied, self.choice.ties))


def _narrow(tied: Bools, rule: str) -> Bools:
    if rule in ("all", "split"):
        return tied
    ordered = tied[..., ::-1] if rule == "last" else tied
    alone = ordered & (np.cumsum(ordered, axis=-1) == 1)
    return np.asarray(alone[..., ::-1] if rule == "last" else alone)


def chosen_meaning(call: Call, name: str, choice: ChoiceRule) -> Meaning:
    """What one result of a selection means by another rule."""
    won = Chosen(call, choice)
    if name == "grad_x":
        assert call.cotangent is not None
        return won.cotangents(call.cotangent, choice.share, call.named()["x"].shape)
    if name in ("y", "indices"):
        return won.values() if name == "y" else won.indices()
    return won.tangents(call.directions[0], choice.share)


def _windows(call: Call) -> Window:
    window = geometry_of(call.problem).window
    assert window is not None
    return window


# --- one of several --------------------------------------------------------------------------------------------------


def _one_of(options: Floats, shape: tuple[int, ...]) -> Meaning:
    """Copies of one of several numbers, unused options repeated."""
    return Selected(options[..., 0].reshape(shape), options.reshape(-1, options.shape[-1]))


def any_tied(call: Call, name: str) -> Meaning:
    """A selection's index or tangent, of any one of the tied cells."""
    won = Winners(call.named()["x"], _windows(call), call.problem.keepdims)
    taps = np.broadcast_to(won.taps, won.tied.shape)
    places = np.where(won.tied, taps, won.winners[..., None])
    if name == "indices":
        options = places.astype(np.float64)
    else:
        planes = planes_of(call.directions[0], call.problem.rank)
        cells = np.take_along_axis(planes[:, None], np.maximum(places, 0).reshape(len(planes), 1, -1), axis=-1)
        options = np.where(places >= 0, cells.reshape(places.shape), 0.0)
    return _one_of(options, won.shape)


def overwritten(call: Call, name: str) -> Meaning:
    """Unpooling that keeps one of the cells that meet at a place."""
    cells = call.named()["x"] if name == "y" else call.directions[0]
    places = planes_of(call.named()["indices"], call.problem.rank)
    size = tuple(call.problem.attributes["output_size"])
    room = int(np.prod(size))
    received = hits(np.where(places >= 0, places + np.arange(len(places))[:, None] * room, -1), room * len(places))
    received = np.where(received >= 0, received, received[:, :1])
    return _one_of(take(cells.astype(np.float64).ravel(), received), (*call.problem.lead, *size))


# --- windows without a real cell -------------------------------------------------------------------------------------

POOLS = ("max_pool", "avg_pool")
"""Operators whose windows may lie in the padding altogether."""


def padding_only(call: Call, name: str) -> Bools | None:
    """Which outputs have no real cell; None where the question does not arise."""
    if call.problem.op not in POOLS or name not in ("y", "indices", "dy", "second_g"):
        return None
    window = _windows(call)
    empty = (Winners(np.zeros(window.sizes), window).winners < 0).reshape(window.outputs)
    return np.asarray(np.broadcast_to(empty, call.problem.lead + window.outputs))


def _padding_only_name(call: Call, name: str, given: Array) -> str | None:
    """The convention by which all windows without a real cell have what they were given, if there is one."""
    first = given[0]
    if not (np.array_equal(given, np.full_like(given, first)) or np.isnan(given.astype(np.float64)).all()):
        return None
    if name == "indices":
        return "padding_only_index"
    if call.problem.op == "avg_pool":
        options = call.problem.attributes
        counts = options.get("count_include_pad", True) or options.get("divisor_override") is not None
        return "padding_only_nan" if np.isnan(first) and not counts else None
    return _lowest_name(first) if name == "y" else None


def _lowest_name(value: Any) -> str:
    if np.isnan(float(value)):
        return "padding_only_nan"
    if float(value) == -np.inf:
        return "padding_only_minus_inf"
    is_integer = value.dtype.kind in "iu"
    least = float(lowest(value.dtype)) if is_integer else -float(format_of(value.dtype).largest)
    return "padding_only_lowest" if float(value) == least else "padding_only_value"


# --- what explains a result ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Explanation:
    """The conventions under which a result is right, and the rule of choosing among them, if there is one."""

    names: tuple[str, ...]
    choice: ChoiceRule | None = None

    @property
    def words(self) -> str:
        return "; ".join(CONVENTIONS[name] for name in self.names)


def explanations(call: Call, name: str, judgement: Judgement) -> Iterator[Explanation]:
    """The conventions that explain all that is wrong with a result: where derivatives are 0, several may."""
    if call.mode != "value" and call.problem.attributes.get("ties", "first") != "first":
        return  # the rule was asked for
    wrong: Bools = ~judgement.ok
    names: tuple[str, ...] = ()
    empty = padding_only(call, name)
    if empty is not None and (wrong & empty).any():
        given = _padding_only_name(call, name, judgement.got[empty])
        if given is None:
            return
        wrong, names = wrong & ~empty, (given,)
    if wrong.any():
        yield from _chosen_otherwise(call, name, judgement, names, empty)
    else:
        yield Explanation(names)


def _chosen_otherwise(
    call: Call, name: str, judgement: Judgement, names: tuple[str, ...], empty: Bools | None
) -> Iterator[Explanation]:
    def explains(meaning: Meaning) -> bool:
        ok = meaning.judge(judgement.got, judgement.arithmetic).ok
        return bool((ok if empty is None or not names else ok | empty).all())

    if call.problem.op == "max_unpool":
        if name in ("y", "dy") and explains(overwritten(call, name)):
            yield Explanation((*names, "unpool_overwrites"))
        return
    if call.problem.op not in SELECTIONS or name == "second_x":
        return
    is_a_rule = False
    for choice in choices():
        if name == "y" and choice.nans != "ignored":
            continue  # no other rule changes a value
        if explains(chosen_meaning(call, name, choice)):
            is_a_rule = True
            yield Explanation((*names, *choice.names), choice)
    if not is_a_rule and name in ("indices", "dy") and explains(any_tied(call, name)):
        yield Explanation((*names, "another_tie"))


# --- whether a target's own JVP and VJP belong together ---------------------------------------------------------------
# Where both keep our rules they do, for ours are transposes; so only a result that breaks them is asked. The question
# is put on small integers, which every format here adds without rounding: a choice is then told apart by equality.


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
    return lay_out(numbers.reshape(like.shape).astype(like.dtype), call.layout, call.problem.rank)


def contradiction(target: Target, call: Call, choice: ChoiceRule) -> str | None:
    """What of the target does not make this choice on the same inputs, or None."""
    others = {mode: one for mode, one in partners(call).items() if mode != call.mode}
    offered = {mode: one for mode, one in others.items() if target.declines(call.problem, mode) is None}
    made = [(mode, one, results) for mode, one in offered.items() if (results := _run(target, one)) is not None]
    for mode, partner, results in made:
        for name in ("indices", "dy", "grad_x"):
            if name in results and not _follows(target, partner, name, results[name], choice):
                return f"its {_WORDS[mode]} does not"
    if not made and "all" in (choice.ties, choice.nans):
        return "that is no subgradient, and there is no JVP to say that it is meant"
    return None


_WORDS = {"value": "index", "jvp": "JVP", "vjp": "VJP"}


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
    wide = (array.astype(np.float64).ravel().tolist() for array in (cotangent, tangent, dy, grad))
    ybar, v, jv, jty = ([rational(number) for number in numbers] for numbers in wide)
    unit = rational(format_named(dtype).unit)
    stored = adjoint_tolerance(ybar, [unit * abs(e) for e in jv], v, [unit * abs(e) for e in jty])
    gap = _inner(ybar, jv) - _inner(jty, v)
    whole = all(float(e).is_integer() and abs(e) < 1 / unit for e in (*jv, *jty))
    return bool(gap == 0 if whole else abs(gap) <= stored)


def _inner(a: list[fmpq], b: list[fmpq]) -> fmpq:
    return sum((x * y for x, y in zip(a, b, strict=True)), fmpq(0))
