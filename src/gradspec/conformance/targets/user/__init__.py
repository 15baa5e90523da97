"""Anyone's own kernels."""
