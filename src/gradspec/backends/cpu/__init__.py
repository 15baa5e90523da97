"""The compiled backend: how operators are lowered to kernels. Kernel sources are imported only to be compiled."""

from __future__ import annotations

from gradspec.backends.cpu import (
    compare,
    conv,
    layout,
    loss,
    lp_pool,
    matmul,
    pointwise,
    pool,
    reduce,
    resize,
    smooth_pool,
    softmax,
    unfold,
    unpool,
)
from gradspec.runtime.task import Lowering

LOWERINGS: dict[str, Lowering] = {
    **compare.LOWERINGS,
    **conv.LOWERINGS,
    **layout.LOWERINGS,
    **loss.LOWERINGS,
    **lp_pool.LOWERINGS,
    **matmul.LOWERINGS,
    **pointwise.LOWERINGS,
    **pool.LOWERINGS,
    **reduce.LOWERINGS,
    **resize.LOWERINGS,
    **smooth_pool.LOWERINGS,
    **softmax.LOWERINGS,
    **unfold.LOWERINGS,
    **unpool.LOWERINGS,
}


def lowering(op_name: str) -> Lowering | None:
    """How an operator is lowered; None where it runs on the NumPy backend."""
    return LOWERINGS.get(op_name)
