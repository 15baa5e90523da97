"""Floats, seen bit by bit."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


def same_bits(a: float, b: float) -> bool:
    """Equal numbers with equal signs, or both NaN (payloads are free)."""
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


def is_largest_float_at_most(x: float, bound: Fraction) -> bool:
    above = math.nextafter(x, math.inf)
    return (x == -math.inf or Fraction(x) <= bound) and (above == math.inf or Fraction(above) > bound)
