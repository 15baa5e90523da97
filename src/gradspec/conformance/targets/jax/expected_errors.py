"""Calls that JAX's documentation rules out."""

from __future__ import annotations

from gradspec.conformance.model.target import Promise
from gradspec.conformance.targets.jax.functions import modules
from gradspec.conformance.targets.program import Code, applied, promised

ROW, WEIGHT, PAIR = (applied("np.zeros", shape) for shape in ((1, 3, 5), (2, 3, 2), (2,)))
CONV, WINDOW = "lax.conv_general_dilated", "lax.reduce_window"
SUM = (Code("lax.add"), (1, 1, 2))
MAX = (Code("-jnp.inf"), Code("lax.max"), (1, 1, 2))

MISTAKES: tuple[tuple[str, str, Code], ...] = (
    (
        "conv",
        f"{CONV}, feature_group_count (XLA's Conv): it divides the input's channels",
        applied(CONV, ROW, WEIGHT, (1,), ((0, 0),), feature_group_count=2),
    ),
    ("conv", f"{CONV}, window_strides: a sequence of n integers", applied(CONV, ROW, WEIGHT, (1, 1), ((0, 0),))),
    ("conv", f"{CONV}, padding: 'SAME', 'SAME_LOWER', 'VALID' or pairs", applied(CONV, ROW, WEIGHT, (1,), "FULL")),
    (
        "conv_transpose",
        "lax.conv_transpose, rhs: of rank n + 2 like lhs",
        applied("lax.conv_transpose", ROW, applied("np.zeros", (2, 3)), (1,), "VALID"),
    ),
    (
        "avg_pool",
        f"{WINDOW}, window_strides: of the same length as window_dimensions",
        applied(WINDOW, ROW, 0.0, *SUM, (1, 1), "VALID"),
    ),
    ("avg_pool", f"{WINDOW}, init_value: a scalar", applied(WINDOW, ROW, PAIR, *SUM, (1, 1, 1), "VALID")),
    (
        "max_pool",
        f"{WINDOW}, padding: one of 'VALID', 'SAME' or 'SAME_LOWER', or pairs",
        applied(WINDOW, ROW, *MAX, (1, 1, 1), "FULL"),
    ),
)
"""Our operator, what is documented, and the call."""


def promises() -> list[Promise]:
    lines = "import jax.numpy as jnp\nimport numpy as np\nfrom jax import lax"
    return [promised(op, call, modules, lines, documented) for op, documented, call in MISTAKES]
