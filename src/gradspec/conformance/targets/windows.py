"""The windows of a problem with every default spelled out: kernel, stride, padding and dilation, one entry per axis."""

from __future__ import annotations

from dataclasses import dataclass

from gradspec.conformance.call import Problem
from gradspec.conformance.operators import settled
from gradspec.spec.window import paddings

SLIDING = ("max_pool", "avg_pool", "smooth_max_pool", "conv", "conv_transpose", "unfold", "fold")
"""The operators that have such windows."""
WEIGHTED = ("conv", "conv_transpose")


@dataclass(frozen=True)
class Windows:
    """Sliding windows over ``sizes``."""

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]

    @property
    def overhang(self) -> tuple[int, ...]:
        """How far a window reaches beyond its first cell."""
        return tuple(d * (k - 1) for d, k in zip(self.dilation, self.kernel, strict=True))


def windows(problem: Problem) -> Windows:
    """The windows of one of the `SLIDING` operators; those of a transposed convolution slide over its output.

    >>> windows(Problem("max_pool", 1, ((2, 5),), {"kernel_size": (3,)})).stride
    (3,)
    """
    given = settled(problem.op, problem.rank, problem.attributes)
    kernel = (problem.shapes[1] or ())[-problem.rank :] if problem.op in WEIGHTED else tuple(given["kernel_size"])
    sizes = tuple(given["output_size"]) if problem.op == "fold" else spatial(problem)
    padding = tuple(paddings(given["padding"], sizes, kernel, given["stride"], given["dilation"]))
    return Windows(sizes, kernel, given["stride"], padding, given["dilation"])


def output_padding(problem: Problem) -> tuple[int, ...]:
    """The cells that a transposed convolution adds at the end of each axis."""
    return tuple(settled(problem.op, problem.rank, problem.attributes)["output_padding"])


def first_shape(problem: Problem) -> tuple[int, ...]:
    """The shape of ``x``, which every problem has."""
    shape = problem.shapes[0]
    assert shape is not None
    return shape


def spatial(problem: Problem) -> tuple[int, ...]:
    return first_shape(problem)[-problem.rank :]


def lead(problem: Problem) -> tuple[int, ...]:
    """The axes of ``x`` before channels and space; for pooling, channels are leading axes like others."""
    own = {"conv": problem.rank + 1, "conv_transpose": problem.rank + 1, "unfold": problem.rank + 1, "fold": 2}
    shape = first_shape(problem)
    return shape[: len(shape) - own.get(problem.op, problem.rank)]
