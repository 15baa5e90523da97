"""JAX: what its users write with ``jax.lax`` and ``jax.numpy``."""
