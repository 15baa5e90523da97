"""Our own compiled CPU kernels."""
