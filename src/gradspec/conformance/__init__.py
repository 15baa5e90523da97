"""Judging kernels: an exact oracle for float arrays, the certified tolerance it judges by, and ``check``.

Imports point one way here too. A room may use itself and those before it:

    model → cases → oracle → judge → checks → targets → shrink → campaign → report

``model`` is what all of them speak in. ``cases`` are what is asked, ``oracle`` is what is right, ``judge`` the verdict
on one result and ``checks`` what is seen beside results. ``targets`` has a folder for each library; none knows another.
"""

from typing import TYPE_CHECKING, Any

from gradspec.conformance.model.arithmetic import Arithmetic
from gradspec.conformance.oracle import Judgement, Meaning, meaning
from gradspec.conformance.oracle.tolerance import Facts, Permitted, permitted

if TYPE_CHECKING:
    from gradspec.conformance.campaign.check import check

__all__ = ["Arithmetic", "Facts", "Judgement", "Meaning", "Permitted", "check", "meaning", "permitted"]


def __getattr__(name: str) -> Any:
    """``check`` loads when it is first used: everything it needs is built upon the rest."""
    if name == "check":
        from gradspec.conformance.campaign.check import check

        return check
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
