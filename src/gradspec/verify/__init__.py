"""Statements about networks that are proved: bounds, properties and the files that state them, and their proofs."""

from gradspec.verify.campaign import campaign
from gradspec.verify.certificate import Certificate
from gradspec.verify.checker import CheckResult, check, check_files
from gradspec.verify.explain import explain
from gradspec.verify.property import Property
from gradspec.verify.prove import Progress, Result, prove, robust
from gradspec.verify.vnnlib import read_vnnlib

__all__ = [
    "Certificate",
    "CheckResult",
    "Progress",
    "Property",
    "Result",
    "campaign",
    "check",
    "check_files",
    "explain",
    "prove",
    "read_vnnlib",
    "robust",
]
