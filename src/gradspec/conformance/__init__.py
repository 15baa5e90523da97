"""Judging kernels: an exact oracle for float arrays, the certified tolerance it judges by, and ``check``."""

# Imports point one way here too. A package may use itself and those before it:
#
#     model → cases → oracle → judge → checks → targets → shrink → campaign → report
#
# ``model`` is what all of them speak in. ``cases`` are what is asked, ``oracle`` is what is right, ``judge`` the
# verdict on one result and ``checks`` what is seen beside results. ``targets`` has a folder for each library; none
# knows another.

from typing import TYPE_CHECKING, Any

from gradspec.conformance.model.arithmetic import Arithmetic
from gradspec.conformance.oracle import Judgement, Meaning, meaning
from gradspec.conformance.oracle.tolerance import Facts, Permitted, permitted

if TYPE_CHECKING:
    from gradspec.conformance.campaign.check import check
    from gradspec.conformance.oracle.enclosure import enclosed_outputs, enclosure

__all__ = [
    "Arithmetic",
    "Facts",
    "Judgement",
    "Meaning",
    "Permitted",
    "check",
    "enclosed_outputs",
    "enclosure",
    "meaning",
    "permitted",
]


def __getattr__(name: str) -> Any:
    """``check`` and enclosures load when they are first used: what they need is built upon the rest."""
    if name in ("enclosed_outputs", "enclosure"):
        from gradspec.conformance.oracle import enclosure

        return getattr(enclosure, name)
    if name == "check":
        from gradspec.conformance.campaign.check import check

        return check
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
