"""What is asked of a campaign: names that exist, a budget, and a function that watches progress."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gradspec.conformance.model.case import FEATURES, Selection, check_blocks
from gradspec.conformance.model.domain import KernelDomain, suggestion
from gradspec.conformance.model.problem import DTYPES, INPUTS, MODES, RANKS
from gradspec.conformance.model.run import Run
from gradspec.conformance.targets import TARGETS
from gradspec.conformance.targets.layers import LAYER_NAMES
from gradspec.conformance.targets.objects import is_module

Name = TypeVar("Name", str, int)
OPERATORS = (*INPUTS, *LAYER_NAMES)
"""All that can be asked for: what has a specification, and layers of libraries, which are judged by references."""


@dataclass(frozen=True)
class CampaignBudget:
    """So many cases, so many seconds and perhaps one defect, whichever comes first; None is no limit."""

    cases: int | None = None
    seconds: float | None = None
    until_defect: bool = False
    at_least: int = 0
    """Cases that must be judged for the run to say what it is asked to say."""

    def __post_init__(self) -> None:
        if self.cases is not None and self.cases < 1:
            raise ValueError(f"cases is {self.cases}; ask for at least one")
        if self.cases is not None and self.at_least > self.cases:
            raise ValueError(f"at_least is {self.at_least} of {self.cases} cases; ask for no more than there will be")
        if self.seconds is not None and not self.seconds > 0:
            raise ValueError(f"seconds is {self.seconds:g}; give a positive number")

    def share(self, run: Run) -> float:
        """What part of it is used up."""
        by_cases = 0.0 if self.cases is None else run.cases / self.cases
        by_seconds = 0.0 if self.seconds is None else run.seconds / self.seconds
        return min(1.0, max(by_cases, by_seconds))


@dataclass(frozen=True)
class Progress:
    """Where a run stands: its stage, ``starting``, ``judging`` or ``shrinking``, and what it has so far."""

    stage: str
    run: Run
    share: float
    """What part of the stage is done."""
    doing: str = ""
    """What it does, if that is not judging cases."""


Watch = Callable[[Progress], None]


def check_names(what: str, given: Iterable[Name], names: Collection[Name]) -> tuple[Name, ...]:
    """The names that were given, each once, if all of them exist.

    >>> check_names("operator", ["max_pol"], INPUTS)
    Traceback (most recent call last):
        ...
    ValueError: there is no operator 'max_pol'; did you mean max_pool?
    """
    if isinstance(given, str):
        raise ValueError(f"{what}s are given as a list, not as {given!r}")
    chosen = tuple(dict.fromkeys(given))
    for name in chosen:
        if name not in names:
            raise ValueError(f"there is no {what} {name!r}; {suggestion(str(name), list(map(str, names)))}")
    return chosen


def check_target(name: str) -> str:
    """A name of `TARGETS`, or a user's own: one with a colon, or of a module or file.

    >>> check_target("pytorch")
    Traceback (most recent call last):
        ...
    ValueError: there is no target 'pytorch'; did you mean torch? For kernels of your own give module or module:object.
    """
    if name not in TARGETS and ":" not in name and not name.endswith(".py") and not is_module(name):
        near = suggestion(name, TARGETS)
        end = "" if near.endswith("?") else "."
        own = "For kernels of your own give module or module:object."
        raise ValueError(f"there is no target {name!r}; {near}{end} {own}")
    return name


def selection_of(
    ops: Iterable[str],
    features: Iterable[str],
    modes: Iterable[str],
    dtypes: Iterable[str],
    ranks: Iterable[int],
    domain: str | Mapping[str, Any],
    sizes: Iterable[int] = (),
    features_known: Collection[str] = FEATURES,
) -> Selection:
    within = KernelDomain.read(domain) if isinstance(domain, str) else KernelDomain.of(**domain)
    named = (
        check_names("operator", ops, OPERATORS),
        check_names("feature", features, features_known),
        check_names("mode", modes, MODES),
    )
    kinds = (check_names("dtype", dtypes, DTYPES), check_names("rank", ranks, RANKS))
    return Selection(*named, *kinds, str(within), check_blocks(sizes))


def require_spec(spec: object, **more: object) -> None:
    """A ValueError unless what is about references comes with one."""
    alone = [name for name, value in more.items() if value is not None and spec is None]
    if alone:
        named = f"{' and '.join(alone)} {'were' if alone[1:] else 'was'}"
        raise ValueError(f"{named} given without spec; give what the kernel is judged by as well")
