"""Calls that JAX's documentation rules out."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradspec.conformance.targets import Promise
from gradspec.conformance.targets.written import Apply, Expression, Name, computed, source

ROW, WEIGHT = Apply("np.zeros", ((1, 3, 5),)), Apply("np.zeros", ((2, 3, 2),))
SUM = (Name("lax.add"), (1, 1, 2))

MISTAKES: tuple[tuple[str, str, Expression], ...] = (
    (
        "conv",
        "lax.conv_general_dilated, feature_group_count (XLA's Conv): it divides the input's channels",
        Apply("lax.conv_general_dilated", (ROW, WEIGHT, (1,), ((0, 0),)), {"feature_group_count": 2}),
    ),
    (
        "conv",
        "lax.conv_general_dilated, window_strides: a sequence of n integers",
        Apply("lax.conv_general_dilated", (ROW, WEIGHT, (1, 1), ((0, 0),))),
    ),
    (
        "conv",
        "lax.conv_general_dilated, padding: 'SAME', 'SAME_LOWER', 'VALID' or pairs",
        Apply("lax.conv_general_dilated", (ROW, WEIGHT, (1,), "FULL")),
    ),
    (
        "conv_transpose",
        "lax.conv_transpose, rhs: of rank n + 2 like lhs",
        Apply("lax.conv_transpose", (ROW, Apply("np.zeros", ((2, 3),)), (1,), "VALID")),
    ),
    (
        "avg_pool",
        "lax.reduce_window, window_strides: of the same length as window_dimensions",
        Apply("lax.reduce_window", (ROW, 0.0, *SUM, (1, 1), "VALID")),
    ),
    (
        "avg_pool",
        "lax.reduce_window, init_value: a scalar",
        Apply("lax.reduce_window", (ROW, Apply("np.zeros", ((2,),)), *SUM, (1, 1, 1), "VALID")),
    ),
    (
        "max_pool",
        "lax.reduce_window, padding: one of 'VALID', 'SAME' or 'SAME_LOWER', or pairs",
        Apply("lax.reduce_window", (ROW, Name("-jnp.inf"), Name("lax.max"), (1, 1, 2), (1, 1, 1), "FULL")),
    ),
)
"""Our operator, what is documented, and the call."""


def promises() -> list[Promise]:
    return [_promise(*mistake) for mistake in MISTAKES]


def _promise(op: str, documented: str, call: Expression) -> Promise:
    lines = ("import jax.numpy as jnp", "import numpy as np", "from jax import lax", "", f"print({source(call)})")
    return Promise(op, lambda: computed(call, _modules()), (Exception,), "\n".join(lines), documented)


def _modules() -> dict[str, Any]:
    import jax.numpy as jnp
    from jax import lax

    return {"jnp": jnp, "lax": lax, "np": np}
