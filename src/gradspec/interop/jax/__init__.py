"""JAX: graphs as functions of its arrays."""
