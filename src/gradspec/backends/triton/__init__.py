"""Pooling on GPUs, in Triton, on tensors of PyTorch.

``geometry`` cuts windows into passes over one or two axes, ``pool`` makes plans of launches, ``plans`` carries them out
and remembers them, and ``pool_kernels`` is what is launched.
"""
