"""PyTorch: models read and written, and its functions on our kernels."""
