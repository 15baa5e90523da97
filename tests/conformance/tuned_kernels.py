"""Kernels that Triton's autotuner chooses a block size for; one of the sizes is wrong."""

import torch
import triton
import triton.language as tl

tuned = triton.autotune([triton.Config({"block": size}) for size in (4, 8, 16)], key=["n"])


@tuned
@triton.jit
def _doubled(x, y, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    factor = 3 if block == 8 else 2
    tl.store(y + at, tl.load(x + at, at < n) * factor, at < n)


@tuned
@triton.jit
def _added(x, y, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.atomic_add(y + at, tl.load(x + at, at < n), at < n)


def doubled(x):
    y = torch.empty_like(x)
    _doubled[lambda meta: (triton.cdiv(x.numel(), meta["block"]),)](x, y, x.numel())
    return y


def added(x):
    y = torch.zeros_like(x)
    _added[lambda meta: (triton.cdiv(x.numel(), meta["block"]),)](x, y, x.numel())
    return y
