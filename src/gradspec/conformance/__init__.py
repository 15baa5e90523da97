"""Judging kernels: an exact oracle for float arrays, and the certified tolerance it judges by."""

from gradspec.conformance.oracle import Judgement, Meaning, meaning
from gradspec.conformance.tolerance import Arithmetic, Facts, Permitted, permitted

__all__ = ["Arithmetic", "Facts", "Judgement", "Meaning", "Permitted", "meaning", "permitted"]
