"""PyTorch, which has many ways to be asked."""
