"""Statements about networks that are proved: bounds, properties and the files that state them, and their proofs."""

from typing import TYPE_CHECKING, Any

from gradspec.verify.campaign import campaign
from gradspec.verify.certificate import Certificate
from gradspec.verify.checker import CheckResult, check, check_files
from gradspec.verify.explain import explain
from gradspec.verify.property import Property
from gradspec.verify.prove import ProofProgress, Result, prove, robust
from gradspec.verify.vnnlib import read_vnnlib

if TYPE_CHECKING:
    from gradspec.verify.judge.run import check_bounds

__all__ = [
    "Certificate",
    "CheckResult",
    "ProofProgress",
    "Property",
    "Result",
    "campaign",
    "check",
    "check_bounds",
    "check_files",
    "explain",
    "prove",
    "read_vnnlib",
    "robust",
]


def __getattr__(name: str) -> Any:
    """``check_bounds`` loads when it is first used: the judge is built upon everything else."""
    if name == "check_bounds":
        from gradspec.verify.judge.run import check_bounds

        return check_bounds
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
