"""Comparisons, and the choice by their results."""

from collections.abc import Callable
from typing import Any

import numpy as np

KERNELS: dict[str, Callable[..., Any]] = {
    "greater": lambda _, a, b: np.greater(a, b),
    "equal": lambda _, a, b: np.equal(a, b),
    "where": lambda _, condition, a, b: np.where(condition, a, b),
}
