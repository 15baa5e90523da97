"""Comparisons, and the choice between two operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import numpy as jnp

LOWERINGS: dict[str, Callable[..., Any]] = {
    "greater": lambda _, a, b: a > b,
    "equal": lambda _, a, b: a == b,
    "where": lambda _, condition, a, b: jnp.where(condition, a, b),
}
