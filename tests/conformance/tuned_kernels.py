"""Kernels that Triton's autotuner chooses a block size for, of which one is wrong; and one with blocks of its own."""

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


@triton.jit
def _tripled(x, y, n, block: tl.constexpr = 48):
    at = tl.program_id(0) * block + tl.arange(0, 64)
    tl.store(y + at, tl.load(x + at, at < n) * 3, (at < n) & (tl.arange(0, 64) < block))


def tripled(x):
    y = torch.empty_like(x)
    _tripled[(triton.cdiv(x.numel(), 48),)](x, y, x.numel())
    return y


def triple(x):
    return 3 * x
