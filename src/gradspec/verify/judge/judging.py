"""Whether bounds are true, and how wide they are."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradspec.conformance.model.problem import Array
from gradspec.conformance.model.target import NotOfferedError
from gradspec.conformance.targets.program import literal
from gradspec.spec.errors import UnsupportedError
from gradspec.verify.judge.cases import BoundsCase
from gradspec.verify.judge.targets import BoundsTarget, Ends
from gradspec.verify.judge.truth import Truth

RULES = {
    "exact": "bounds contain the exact value at every point of the box",
    "kernel": "bounds contain what our compiled kernels, which conform, give at every point of the box",
    "permitted": "bounds for any kernel contain every result that the certified tolerance permits",
    "shape": "there is a bound for every output",
    "nan": "a bound is a number",
    "error": "a box is bounded, or refused",
    "bad box": "a box that is none is an error that says so",
}


@dataclass(frozen=True)
class Flaw:
    """One thing that is wrong: ``rule`` is a name of `RULES`, and ``size`` says whether rounding explains it."""

    rule: str
    size: str
    got: str
    right: str
    point: str = ""

    @property
    def kind(self) -> tuple[str, str]:
        return self.rule, self.size


@dataclass
class BoundsVerdict:
    """On one case by one method: what is wrong, or why it is not offered, and widths over sampled ranges."""

    flaw: Flaw | None = None
    refused: str = ""
    ratios: list[float] = field(default_factory=list)


def judge(target: BoundsTarget, case: BoundsCase, method: str, truth: Truth) -> BoundsVerdict:
    """Ask the target, and compare with what is true."""
    try:
        found = target.bounds(case, method, truth.box)
    except (NotOfferedError, NotImplementedError, UnsupportedError) as error:
        return BoundsVerdict(refused=str(error) or type(error).__name__)
    except Exception as error:
        return BoundsVerdict(Flaw("error", "", f"{type(error).__name__}: {error}", "bounds"))
    lower, upper = (np.asarray(end) for end in found)
    if lower.shape != truth.shape or upper.shape != truth.shape:
        return BoundsVerdict(Flaw("shape", "", f"shapes {lower.shape} and {upper.shape}", f"shape {truth.shape}"))
    ends = lower.ravel().astype(np.float64), upper.ravel().astype(np.float64)
    if np.isnan(ends[0]).any() or np.isnan(ends[1]).any():
        return BoundsVerdict(Flaw("nan", "", f"[{lower.tolist()}, {upper.tolist()}]", "numbers"))
    flaws = (_excluded(kind, truth, ends) for kind in target.methods[method])
    return BoundsVerdict(next(filter(None, flaws), None), ratios=_ratios(truth, ends))


def _excluded(kind: str, truth: Truth, ends: Ends) -> Flaw | None:
    """The value that lies furthest outside."""
    values = truth.values(kind)
    beyond = np.maximum(ends[0] - values.below, values.above - ends[1])
    beyond[np.isnan(beyond)] = 0.0  # infinite ends on their own side
    at, place = np.unravel_index(np.argmax(beyond), beyond.shape)
    if not beyond[at, place] > 0:
        return None
    size = "rounding" if beyond[at, place] <= truth.rounding else "wrong"
    is_below = ends[0][place] > values.below[at, place]
    value = values.below[at, place] if is_below else values.above[at, place]
    where = ", ".join(map(str, np.unravel_index(place, truth.shape)))
    return Flaw(
        kind,
        size,
        got=f"output [{where}] within [{float(ends[0][place])!r}, {float(ends[1][place])!r}]",
        right=f"{_WORDS[kind]} {float(value)!r}, {'below' if is_below else 'above'} it by {beyond[at, place]:.3g}",
        point=f"x = {literal(truth.points[at])}",
    )


_WORDS = {
    "exact": "exactly (rounded outward to float64)",
    "kernel": "a kernel gives",
    "permitted": "a conforming kernel may give",
}


def _ratios(truth: Truth, ends: Ends) -> list[float]:
    """The width of each output over the range of its exact values, where that is no matter of rounding."""
    values = truth.exact
    ranges = values.below.max(axis=0) - values.above.min(axis=0)
    told = ranges > truth.rounding
    return [float(ratio) for ratio in ((ends[1] - ends[0])[told] / ranges[told])]


# --- boxes that are none ----------------------------------------------------------------------------------------------


def bad_boxes(case: BoundsCase, box: Ends) -> dict[str, tuple[Ends, str]]:
    """Boxes that are none, each with the pattern of words of which an error has one."""
    lower, upper = (np.asarray(end, np.float32) for end in box)
    first = (0,) * lower.ndim
    return {
        "the lower end above the upper one": ((_put(lower, first, upper[first] + 1), upper), "lower|upper|empty|swap"),
        "a NaN for an end": ((_put(lower, first, np.nan), upper), "nan"),
        "ends of another shape": ((lower[..., :0], upper[..., :0]), "shape|size|dimension"),
    }


def _put(array: Array, place: tuple[int, ...], value: Any) -> Array:
    changed = array.copy()
    changed[place] = value
    return changed


def accepted(target: BoundsTarget, case: BoundsCase, method: str, box: Ends) -> dict[str, tuple[Flaw, Ends]]:
    """The bad boxes that a target takes, or about which it says something else."""
    found = dict[str, tuple[Flaw, Ends]]()
    for name, (bad, words) in bad_boxes(case, box).items():
        try:
            got = f"bounds {[end.tolist() for end in target.bounds(case, method, bad)]}"
        except Exception as error:
            if re.search(words, str(error), re.IGNORECASE):
                continue
            got = f"{type(error).__name__}: {error}"
        found[name] = Flaw("bad box", "", got, f"an error that names {name}"), bad
    return found
