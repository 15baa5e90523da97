"""JAX's primitives as functions of variables: a rule takes the operands, and by name what the primitive states."""

from __future__ import annotations

from gradspec.interop.jax.primitives import arithmetic, layout

RULES: dict[str, layout.Rule] = layout.RULES | arithmetic.RULES

NO_MEANING = frozenset(
    (
        *("_split_transpose", "accuracy", "branches_platforms", "indices_are_sorted", "is_stable", "linear"),
        *("out_sharding", "precision", "sharding", "unique_indices", "unroll", "update_consts", "update_jaxpr"),
        "weak_type",
    )
)
"""What primitives state of how they are computed, and not of what. Rules are not given it, and take all the rest."""
