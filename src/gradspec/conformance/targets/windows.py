"""The windows of a problem with every default spelled out: kernel, stride, padding and dilation, one entry per axis."""

from __future__ import annotations

from dataclasses import dataclass

from gradspec.conformance.call import Problem
from gradspec.spec.window import paddings, per_axis

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
    given, rank = problem.attributes, problem.rank
    weight = problem.shapes[1] if problem.op in WEIGHTED else None
    kernel = tuple(given["kernel_size"]) if weight is None else weight[-rank:]
    sizes = tuple(given["output_size"]) if problem.op == "fold" else spatial(problem)
    usual = kernel if problem.op.endswith("pool") else 1
    stride = per_axis("stride", usual if given.get("stride") is None else given["stride"], rank, least=1)
    dilation = per_axis("dilation", given.get("dilation", 1), rank, least=1)
    padding = tuple(paddings(given.get("padding", 0), sizes, kernel, stride, dilation))
    return Windows(sizes, kernel, stride, padding, dilation)


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
