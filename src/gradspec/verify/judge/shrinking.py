"""Smaller cases that fail in the same way: fewer steps, usual attributes, fewer cells, plainer numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from gradspec.conformance.model.attributes import known
from gradspec.conformance.model.problem import CONVOLUTIONS
from gradspec.verify.judge.cases import BoundsCase, with_step
from gradspec.verify.judge.judging import Flaw, judge
from gradspec.verify.judge.targets import BoundsTarget
from gradspec.verify.judge.truth import Truth

DRAWS = 2
"""Numbers that a smaller case is tried with."""
USUAL = {
    "stride": None,
    "padding": 0,
    "dilation": 1,
    "ceil_mode": False,
    "count_include_pad": True,
    "divisor_override": None,
    "output_padding": 0,
    "groups": 1,
    "padding_mode": "zeros",
}
PLAIN_BOXES = ("ties", "wide")


def shrunk(target: BoundsTarget, case: BoundsCase, method: str, flaw: Flaw, until: float) -> tuple[BoundsCase, Flaw]:
    """The smallest case that is found, in steps of which each must show the same kind of flaw."""
    tried = {repr(case)}
    while time.monotonic() < until:
        for smaller in _smaller(case):
            if repr(smaller) in tried or time.monotonic() > until:
                continue
            tried.add(repr(smaller))
            found = _fails(target, smaller, method, flaw)
            if found is not None:
                case, flaw = found
                break
        else:
            break
    return case, flaw


def _fails(target: BoundsTarget, case: BoundsCase, method: str, flaw: Flaw) -> tuple[BoundsCase, Flaw] | None:
    for draw in range(DRAWS):
        drawn = replace(case, seed=case.seed + draw)
        try:
            if target.refusal(drawn) is not None:
                return None
            found = judge(target, drawn, method, Truth(drawn)).flaw
        except (ValueError, TypeError, IndexError):  # no such geometry
            return None
        if found is not None and found.kind == flaw.kind:
            return drawn, found
    return None


def _smaller(case: BoundsCase) -> Iterator[BoundsCase]:
    for place in range(len(case.steps) if len(case.steps) > 1 else 0):
        yield replace(case, steps=case.steps[:place] + case.steps[place + 1 :])
    for place, step in enumerate(case.steps):
        for name, usual in USUAL.items():
            if name in step.attributes and step.attributes[name] not in (usual, _spread(usual, name, case.rank)):
                plain = 1 if step.op in CONVOLUTIONS and name == "stride" else usual
                yield with_step(case, place, **{name: plain})
    yield from _fewer_cells(case)
    if case.numbers != "small":
        yield replace(case, numbers="small")
    if case.box not in PLAIN_BOXES:
        yield from (replace(case, box=box) for box in PLAIN_BOXES)


def _spread(usual: object, name: str, rank: int) -> object:
    """A number for all axes, as it is written for each."""
    if not isinstance(usual, int) or isinstance(usual, bool) or name in ("groups", "divisor_override"):
        return usual
    return ((usual, usual),) * rank if name == "padding" else (usual,) * rank


def _fewer_cells(case: BoundsCase) -> Iterator[BoundsCase]:
    for axis, size in enumerate(case.shape):
        for less in sorted({1, size // 2, size - 1} - {0, size}):
            if less < size:
                yield replace(case, shape=(*case.shape[:axis], less, *case.shape[axis + 1 :]))
    for place, step in enumerate(case.steps):
        for name in ("kernel_size", "stride", "output_size"):
            given = step.attributes.get(name)
            sizes = given if isinstance(given, tuple) else ()
            for axis, size in enumerate(sizes):
                if size is not None and size > 1:
                    yield with_step(case, place, **{name: (*sizes[:axis], size - 1, *sizes[axis + 1 :])})
        for name in ("channels", "outputs"):
            if step.attributes.get(name, 1) > 1:
                yield with_step(case, place, **{name: 1})


def unusual(case: BoundsCase) -> tuple[str, ...]:
    """The attributes that a case has not left at their defaults: of a shrunk case, those that matter."""
    found = dict[str, None]()
    for step in case.steps:
        for name, value in step.attributes.items():
            if name not in USUAL or (step.op not in ("relu", "linear") and name not in known(step.op)):
                continue
            usual = USUAL[name]
            plain = [usual, _spread(usual, name, case.rank), *([1, (1,) * case.rank] if "conv" in step.op else [])]
            if name == "stride":
                plain.append(step.attributes.get("kernel_size"))
            if value not in plain:
                found[name] = None
    return tuple(found)
