"""Judging kernels: an exact oracle for float arrays, the certified tolerance it judges by, and ``check``."""

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
