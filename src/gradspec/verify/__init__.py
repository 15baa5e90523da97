"""Statements about networks that are proved: bounds, properties and the files that state them, and their proofs."""

from gradspec.verify.property import Property
from gradspec.verify.prove import Progress, Result, prove, robust
from gradspec.verify.vnnlib import read_vnnlib

__all__ = ["Progress", "Property", "Result", "prove", "read_vnnlib", "robust"]
