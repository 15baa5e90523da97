"""Calls that JAX's documentation rules out."""

from __future__ import annotations

from gradspec.conformance.targets.program import Code, ErrorRow, applied

ROW, WEIGHT, PAIR, FLAT = (applied("np.zeros", shape) for shape in ((1, 3, 5), (2, 3, 2), (2,), (2, 3)))
CONV, TRANSPOSE, WINDOW = "lax.conv_general_dilated", "lax.conv_transpose", "lax.reduce_window"
SUM = (Code("lax.add"), (1, 1, 2))
MAX = (Code("-jnp.inf"), Code("lax.max"), (1, 1, 2))
_GROUPS = f"{CONV}, feature_group_count (XLA's Conv): it divides the input's channels"
_CONV_STRIDES = f"{CONV}, window_strides: a sequence of n integers"
_CONV_PADDING = f"{CONV}, padding: 'SAME', 'SAME_LOWER', 'VALID' or pairs"
_RANK = f"{TRANSPOSE}, rhs: of rank n + 2 like lhs"
_STRIDES = f"{WINDOW}, window_strides: of the same length as window_dimensions"
_PADDING = f"{WINDOW}, padding: one of 'VALID', 'SAME' or 'SAME_LOWER', or pairs"

ROWS = (
    ErrorRow("conv", _GROUPS, applied(CONV, ROW, WEIGHT, (1,), ((0, 0),), feature_group_count=2)),
    ErrorRow("conv", _CONV_STRIDES, applied(CONV, ROW, WEIGHT, (1, 1), ((0, 0),))),
    ErrorRow("conv", _CONV_PADDING, applied(CONV, ROW, WEIGHT, (1,), "FULL")),
    ErrorRow("conv_transpose", _RANK, applied(TRANSPOSE, ROW, FLAT, (1,), "VALID")),
    ErrorRow("avg_pool", _STRIDES, applied(WINDOW, ROW, 0.0, *SUM, (1, 1), "VALID")),
    ErrorRow("avg_pool", f"{WINDOW}, init_value: a scalar", applied(WINDOW, ROW, PAIR, *SUM, (1, 1, 1), "VALID")),
    ErrorRow("max_pool", _PADDING, applied(WINDOW, ROW, *MAX, (1, 1, 1), "FULL")),
)
IMPORTS = "import jax.numpy as jnp\nimport numpy as np\nfrom jax import lax"
