"""The compiled backend: how operators are lowered to kernels. Kernel sources are imported only to be compiled."""

from __future__ import annotations

from gradspec.backends.cpu.conv import gradient as conv_gradient
from gradspec.backends.cpu.conv import plan as conv
from gradspec.backends.cpu.layout import plan as layout
from gradspec.backends.cpu.matmul import plan as matmul
from gradspec.backends.cpu.pointwise import plan as pointwise
from gradspec.backends.cpu.pool import plan as pool
from gradspec.backends.cpu.reduce import plan as reduce
from gradspec.runtime.task import Lowering

LOWERINGS: dict[str, Lowering] = {
    **conv.LOWERINGS,
    **conv_gradient.LOWERINGS,
    **layout.LOWERINGS,
    **matmul.LOWERINGS,
    **pointwise.LOWERINGS,
    **pool.LOWERINGS,
    **reduce.LOWERINGS,
}


def lowering(op_name: str) -> Lowering | None:
    """How an operator is lowered; None where it runs on the NumPy backend."""
    return LOWERINGS.get(op_name)
