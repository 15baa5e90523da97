"""What calls leave behind for others: kept between neighbouring ones, or shared by threads.

A result is held against what the call means by itself, so a kernel that adds in another order each time passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from random import Random
from typing import TypeAlias
from zlib import crc32

from gradspec.conformance.checks.neighbours import neighbour, neighbours, others, reverse, with_ties
from gradspec.conformance.checks.repeat import Outcome, differences
from gradspec.conformance.judge.verdicts import judge_call
from gradspec.conformance.model.changes import Changes
from gradspec.conformance.model.problem import Call
from gradspec.conformance.model.target import CALLERS, Answer, Target
from gradspec.conformance.model.verdict import Verdict
from gradspec.spec.errors import ShapeError

STRUCTURAL = 3
"""Neighbours of one call that differ in an attribute or a size. What is kept for one of them by a key that lacks one
thing is not what another would find: the two differ in a second thing."""
OTHERS = 2
"""Neighbours of one call that differ in numbers, dtype, layout or way of calling."""
SELDOM = {"groups": 0.2}
"""Few calls have other groups, so they are tried first where there are some."""
TOGETHER = f"in {CALLERS} threads at once"
LARGER = 16
"""How many times the samples threads are given where there are few cells: one call lasts until the next begins."""


Around: TypeAlias = tuple[str, Call, Outcome]
"""A difference, the neighbour that has it, and what that gave."""

# --- neighbouring calls -----------------------------------------------------------------------------------------------


def neighbouring(target: Target, call: Call) -> list[Verdict]:
    """The call, some neighbours that differ in structure and some that differ otherwise, and all of them again."""
    if target.compiles:
        return []
    first, around = Outcome.of(target, call), list[Around]()
    for difference, one in _choose_neighbours(target, call):
        verdicts = _after(target, with_ties(call) if difference == "ties" else call, one, difference)
        if first.error or verdicts:
            return [] if first.error else verdicts
        there = Outcome.of(target, one)
        if not there.error:  # which is that it does not offer such a call, or it would be a verdict
            around.append((difference, one, there))
    for difference, one, before in [("", call, first), *around[:1]]:
        setting = f"around {reverse(call, difference) or around[-1][0]}" if around else "again"
        when, now = describe_setting(setting), Outcome.of(target, one)
        found = list(differences(target, one, before, now, "state", when, setting))
        if found:
            return [replace(verdict, about=one) for verdict in found]
    return []


def _choose_neighbours(target: Target, call: Call) -> Iterator[tuple[str, Call]]:
    """Neighbours that the target offers, by a chance that is the call's own."""
    numbers = b"".join(array.tobytes() for array in call.arrays().values())
    chance = Random(crc32(repr((call.problem, call.mode)).encode() + numbers))
    otherwise = others(call, target.variants(call.problem, call.mode))
    for names, most in ((Changes.of(call).differences, STRUCTURAL), (otherwise, OTHERS)):
        in_order = sorted(names, key=lambda name: chance.random() * SELDOM.get(name, 1.0))
        bases = ((name, with_ties(call) if name == "ties" else call) for name in in_order)
        chosen = ((name, _choose(target, base, name, chance)) for name, base in bases)
        yield from islice(((name, one) for name, one in chosen if one is not None), most)


def _choose(target: Target, call: Call, difference: str, chance: Random) -> Call | None:
    """One of the neighbours that the target offers. Of a reference's other sizes only the one that is chosen is read:
    a trial tells which there are, and takes a hundredth of the time."""
    if likely := Changes.of(call).likely(difference):
        with suppress(ShapeError):
            one = chance.choice(likely).call(call)
            return one if target.takes(one) else None
    offered = list(filter(target.takes, neighbours(call, difference)))
    return chance.choice(offered) if offered else None


def _after(target: Target, call: Call, one: Call, difference: str) -> list[Verdict]:
    """What is wrong with a neighbour, right after the call itself."""
    with _in_place(call, one, difference) as there:
        wrong = _defects(target, there)
    about, setting = one.mapped(lambda array: array.copy()), f"after {reverse(call, difference)}"
    # That a call wrote into its inputs shows without the call before it.
    settings = ["" if verdict.rule == "input_changed" else setting for verdict in wrong]
    return [replace(verdict, setting=s, about=about) for verdict, s in zip(wrong, settings, strict=True)]


def _defects(target: Target, call: Call) -> list[Verdict]:
    """What of a call no mode explains that the target documents."""
    return [verdict for verdict in judge_call(target, call, frozenset(target.reduced())) if verdict.kind == "defect"]


def describe_setting(setting: str) -> str:
    """
    >>> describe_setting("after stride")
    'before it came a call that differs in nothing but stride'
    """
    word, _, difference = setting.strip().partition(" ")
    first = "between two of these calls came" if word == "around" else "before it came"
    return f"{first} a call that differs in nothing but {difference}"


@contextmanager
def _in_place(call: Call, other: Call, difference: str) -> Iterator[Call]:
    """Another call, its numbers in the arrays of the first where the two differ in the numbers of an array alone."""
    kind, _, name = difference.rpartition(" ")
    if kind != "numbers of" or call is other:
        yield other
        return
    array = call.arrays()[name]
    before = array.copy()
    array[...] = other.arrays()[name]
    try:
        yield call
    finally:
        array[...] = before


def in_setting(target: Target, call: Call, setting: str) -> list[Verdict]:
    """What is wrong with a call after or around a neighbour."""
    word, _, difference = setting.partition(" ")
    other = neighbour(call, difference)
    if other is None or not target.takes(other):
        return []
    first = Outcome.of(target, call) if word == "around" else Outcome({})
    with _in_place(call, other, difference) as there:
        Outcome.of(target, there)
    if word == "after":
        found = _defects(target, call)
    else:
        when, now = describe_setting(setting), Outcome.of(target, call)
        found = list(differences(target, call, first, now, "state", when, setting))
    return [replace(verdict, setting=setting) for verdict in found]


# --- threads ----------------------------------------------------------------------------------------------------------


def together(target: Target, call: Call) -> list[Verdict]:
    """Calls from several threads at once: on other numbers of the same shapes, and on other shapes."""
    if not target.may_race(call):
        return []
    for made, yields in ((call, True), (_larger(target, call), False)):
        for one, alone, raced in _race(target, _rivals(target, made), yields):
            found = list(differences(target, one, alone, raced, "concurrent", TOGETHER, "together"))
            if found:
                return [replace(verdict, about=one) for verdict in found]
    return []


def _rivals(target: Target, call: Call) -> list[tuple[Call, Outcome]]:
    """The call and neighbours of it, each with what it gives alone: those of one shape are next to each other."""
    wanted = (f"numbers of {next(iter(call.arrays()))}", "size of the last axis")
    found = (n for difference in wanted if (n := neighbour(call, difference)) is not None)
    calls = [call, *(n for n in found if target.takes(n))]
    return [(one, alone) for one in calls if not (alone := Outcome.of(target, one)).error]


def _larger(target: Target, call: Call) -> Call:
    """The call on more samples, if the target takes as many."""
    change = Changes.of(call).larger(LARGER)
    with suppress(ShapeError, ValueError):
        larger = call if change is None else change.call(call)
        return larger if target.takes(larger) else call
    return call


def _race(target: Target, calls: Sequence[tuple[Call, Outcome]], yields: bool) -> list[tuple[Call, Outcome, Outcome]]:
    """Results that were other ones than those of a call alone. Threads yield after lines of Python, or do not."""

    def is_like(index: int, answer: Answer) -> bool:
        return Outcome.of_answer(answer).is_like(calls[index][1])

    found = target.race([call for call, _ in calls], is_like, yields)
    return [(*calls[index], Outcome.of_answer(answer)) for index, answer in found]
