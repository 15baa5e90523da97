"""The standard grids: what is timed, as data, and the numbers it is timed on, the same in every process.

All numbers are float32, but for some of the cells for GPUs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, product
from math import prod
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gradspec.conformance.model.problem import DTYPES

Shape = tuple[int, ...]
Array: TypeAlias = NDArray[Any]
DType: TypeAlias = np.dtype[Any]
ITEMS = {"f32": 4, "f16": 2, "bf16": 2}
"""Formats, and the bytes of a number."""

MODES = {"forward": "value", "jvp": "value + JVP", "vjp": "value + VJP"}
POOL_OPS = ("max", "avg", "smooth")
BETA = 1.0  # of the smooth maximum; its padding counts as zeros


@dataclass(frozen=True)
class Pool:
    """Windows of one width along every spatial axis or, if ``output_size`` is given, adaptive ones (global: all 1)."""

    name: str
    shape: Shape
    kernel: int = 0
    stride: int = 0
    padding: int = 0
    output_size: Shape = ()
    dtype: str = "f32"
    channels_last: bool = False

    @property
    def rank(self) -> int:
        return len(self.shape) - 2

    @property
    def is_global(self) -> bool:
        return self.output_size == (1,) * self.rank

    @property
    def is_adaptive(self) -> bool:
        return bool(self.output_size) and not self.is_global

    @property
    def ops(self) -> tuple[str, ...]:
        return POOL_OPS[:2] if self.is_adaptive else POOL_OPS  # nobody has an adaptive smooth maximum

    modes = tuple(MODES)

    @property
    def windows(self) -> tuple[Shape, Shape, Shape]:
        """Kernel, stride and padding per axis; a global pool is one window as large as the plane."""
        if self.is_global:
            return self.shape[2:], self.shape[2:], (0,) * self.rank
        return (self.kernel,) * self.rank, (self.stride,) * self.rank, (self.padding,) * self.rank

    @property
    def text(self) -> str:
        if self.output_size:
            return f"{_dims(self.shape)} to {_dims(self.output_size)}"
        return f"{_dims(self.shape)} k{self.kernel} s{self.stride} p{self.padding}"

    def forms(self) -> Iterator[Pool]:
        """The same in every format, channels first and, where there is such a layout, last; their names say which.

        >>> [pool.name for pool in Pool("P7", (64, 64, 16384), 4, 4).forms()]
        ['P7-f32-first', 'P7-f16-first', 'P7-bf16-first']
        """
        for dtype, order in product(ITEMS, ("first", "last") if self.rank in (2, 3) else ("first",)):
            name = f"{self.name}-{dtype}-{order}"
            yield replace(self, name=name, dtype=dtype, channels_last=order == "last")

    def inputs(self) -> dict[str, Shape]:
        return {"x": self.shape}

    def output(self) -> Shape:
        return self.shape[:2] + (self.output_size or _slid(self.shape[2:], *self.windows))

    def active(self) -> Shape:
        return (0,)

    def flops(self, mode: str) -> int:
        return 0


@dataclass(frozen=True)
class Conv:
    """A convolution without bias, kernel and stride the same along every spatial axis."""

    name: str
    shape: Shape
    channels: int
    kernel: int
    stride: int
    padding: int
    dilation: int = 1
    groups: int = 1
    transposed: bool = False

    ops = ("conv",)
    modes = tuple(MODES)
    dtype, channels_last = "f32", False

    @property
    def rank(self) -> int:
        return len(self.shape) - 2

    @property
    def text(self) -> str:
        extras = ("transposed", self.transposed), (f"dilation {self.dilation}", self.dilation > 1)
        named = [name for name, present in (*extras, (f"groups {self.groups}", self.groups > 1)) if present]
        plain = f"{_dims(self.shape)} to {self.channels}, k{self.kernel} s{self.stride} p{self.padding}"
        return " ".join((plain, *named))

    @property
    def weight(self) -> Shape:
        given = self.shape[1]
        ends = (given, self.channels) if self.transposed else (self.channels, given // self.groups)
        return (*ends, *(self.kernel,) * self.rank)

    def inputs(self) -> dict[str, Shape]:
        return {"x": self.shape, "weight": self.weight}

    def output(self) -> Shape:
        reach, lost = self.dilation * (self.kernel - 1) + 1, 2 * self.padding
        if self.transposed:
            spatial = tuple((n - 1) * self.stride + reach - lost for n in self.shape[2:])
        else:
            spatial = tuple((n + lost - reach) // self.stride + 1 for n in self.shape[2:])
        return (self.shape[0], self.channels, *spatial)

    def active(self) -> Shape:
        return (0, 1)

    def flops(self, mode: str) -> int:
        """A multiplication and an addition per weight and position; a derivative takes two more such products."""
        positions = self.shape if self.transposed else self.output()
        per_position = prod(self.weight[1:])
        return 2 * prod(positions) * per_position * (1 if mode == "forward" else 3)


@dataclass(frozen=True)
class Layer:
    """One step of a network; which fields mean something depends on ``kind``."""

    kind: str  # conv, linear, max_pool, relu, flatten; "keep" remembers the value that the next "add" adds
    channels: int = 0
    kernel: int = 0
    stride: int = 1
    padding: int = 0


@dataclass(frozen=True)
class Network:
    """Layers with biases; its gradient is that of a loss in all parameters."""

    name: str
    shape: Shape
    layers: tuple[Layer, ...]
    loss: str  # cross_entropy or mean_square
    text: str

    ops = ("net",)
    modes = ("forward", "vjp")
    rank = 2
    dtype, channels_last = "f32", False

    @cached_property
    def _walk(self) -> tuple[dict[str, Shape], list[int], Shape]:
        """Parameter shapes, multiplications per layer that has any, and the shape of the result."""
        shape, parameters, products = self.shape, dict[str, Shape](), list[int]()
        for i, layer in enumerate(self.layers):
            if layer.kind in ("conv", "max_pool"):
                windows = (layer.kernel,) * 2, (layer.stride,) * 2, (layer.padding,) * 2
                after = (shape[0], layer.channels or shape[1], *_slid(shape[2:], *windows))
            elif layer.kind == "linear":
                after = (shape[0], layer.channels)
            else:
                after = (shape[0], prod(shape[1:])) if layer.kind == "flatten" else shape
            if layer.kind in ("conv", "linear"):
                kernel = (layer.kernel,) * 2 if layer.kind == "conv" else ()
                parameters |= {f"weight{i}": (layer.channels, shape[1], *kernel), f"bias{i}": (layer.channels,)}
                products.append(prod(after) * shape[1] * prod(kernel))
            shape = after
        return parameters, products, shape

    def inputs(self) -> dict[str, Shape]:
        return {"x": self.shape, **self._walk[0]}

    def output(self) -> Shape:
        return self._walk[2]

    def active(self) -> Shape:
        return tuple(range(1, len(self.inputs())))

    def flops(self, mode: str) -> int:
        """The input has no gradient, so the first layer's transposed product is never needed."""
        first, total = self._walk[1][0], sum(self._walk[1])
        return 2 * (total if mode == "forward" else 3 * total - first)


@dataclass(frozen=True)
class Limit:
    """What the machine can do: a plain copy of memory, or a square matrix product."""

    name: str
    side: int
    is_product: bool = False

    modes = ("forward",)
    rank = 0
    dtype, channels_last = "f32", False

    @property
    def ops(self) -> tuple[str, ...]:
        return ("matmul",) if self.is_product else ("copy",)

    @property
    def text(self) -> str:
        return f"{self.side} square"

    def inputs(self) -> dict[str, Shape]:
        return dict.fromkeys("ab" if self.is_product else "a", (self.side, self.side))

    def output(self) -> Shape:
        return (self.side, self.side)

    def active(self) -> Shape:
        return ()

    def flops(self, mode: str) -> int:
        return 2 * self.side**3 if self.is_product else 0


Cell = Pool | Conv | Network | Limit


@dataclass(frozen=True)
class BenchProblem:
    """A cell, which operator on it, and value alone or with a derivative."""

    cell: Cell
    op: str
    mode: str

    def __str__(self) -> str:
        return f"{self.cell.name} {self.op} {self.mode}"

    @property
    def has_fixed_weights(self) -> bool:
        """Whether all inputs but the first may be constants: no derivative in them is asked for."""
        return self.mode == "forward" and isinstance(self.cell, Conv | Network)

    @property
    def bytes(self) -> int:
        """What must at least be read and written: inputs and result, and as much again for what moves along them."""
        item = ITEMS[self.cell.dtype]
        inputs, output = (item * prod(shape) for shape in self.cell.inputs().values()), item * prod(self.cell.output())
        if isinstance(self.cell, Network) and self.mode == "vjp":
            x, *parameters = inputs
            return x + 2 * sum(parameters) + output
        return (sum(inputs) + output) * (1 if self.mode == "forward" else 2)

    @property
    def flops(self) -> int:
        return self.cell.flops(self.mode)


def _slid(sizes: Shape, kernel: Shape, stride: Shape, padding: Shape) -> Shape:
    return tuple((n + 2 * p - k) // s + 1 for n, k, s, p in zip(sizes, kernel, stride, padding, strict=True))


def _dims(shape: Shape) -> str:
    return "×".join(map(str, shape))


def _conv(channels: int, kernel: int, stride: int = 1, padding: int = 0) -> tuple[Layer, Layer]:
    return Layer("conv", channels, kernel, stride, padding), Layer("relu")


RESIDUAL = (Layer("keep"), *_conv(64, 3, 1, 1), Layer("conv", 64, 3, 1, 1), Layer("add"), Layer("relu"))
LENET = (
    *(*_conv(6, 5, 1, 2), Layer("max_pool", 0, 2, 2)),
    *(*_conv(16, 5), Layer("max_pool", 0, 2, 2), Layer("flatten")),
    *(Layer("linear", 120), Layer("relu"), Layer("linear", 84), Layer("relu"), Layer("linear", 10)),
)
RESNET = (*_conv(64, 7, 2, 3), Layer("max_pool", 0, 3, 2, 1), *RESIDUAL, *RESIDUAL)

POOLS = (
    Pool("P1", (8, 64, 112, 112), 3, 2, 1),
    Pool("P2", (8, 64, 112, 112), 2, 2, 0),
    Pool("P3", (8, 64, 56, 56), 3, 1, 1),
    Pool("P4", (4, 32, 128, 128), 13, 1, 6),
    Pool("P5", (1, 3, 1024, 1024), 5, 1, 2),
    Pool("P6", (2, 32, 32, 64, 64), 3, 2, 1),
    Pool("P7", (16, 64, 16384), 4, 4, 0),
    Pool("P8", (1, 8, 16, 16, 16, 16), 2, 2, 0),
    Pool("P9", (8, 256, 14, 14), output_size=(7, 5)),
    Pool("P10", (8, 512, 28, 28), output_size=(1, 1)),
    Pool("P11", (1, 16, 14, 14), 2, 2, 0),
)
GRID: dict[str, tuple[Cell, ...]] = {
    "pool": POOLS,
    "conv": (
        Conv("C1", (8, 64, 56, 56), 64, 3, 1, 1),
        Conv("C2", (8, 3, 224, 224), 64, 7, 2, 3),
        Conv("C3", (8, 256, 14, 14), 256, 3, 1, 1),
        Conv("C4", (8, 64, 56, 56), 256, 1, 1, 0),
        Conv("C5", (1, 64, 56, 56), 64, 3, 1, 1),
        Conv("C6", (8, 128, 56, 56), 128, 3, 1, 1, groups=128),
        Conv("C7", (4, 64, 64, 64), 64, 3, 1, 2, dilation=2),
        Conv("C8", (16, 64, 4096), 128, 9, 1, 4),
        Conv("C9", (1, 16, 16, 56, 56), 32, 3, 1, 1),
        Conv("C10", (8, 64, 28, 28), 64, 4, 2, 1, transposed=True),
        Conv("C11", (1, 8, 14, 14), 8, 3, 1, 1),
        Conv("C12", (1, 4, 10, 10, 10, 10), 8, 3, 1, 1),
    ),
    "net": (
        Network("N1", (64, 1, 28, 28), LENET, "cross_entropy", "LeNet-5, batch 64"),
        Network("N2", (4, 3, 224, 224), RESNET, "mean_square", "ResNet-18 stem and first stage, batch 4"),
    ),
}
GPU_BATCHES = (64, 64, 256, 128, 16, 16, 64, 128, 1024, 128)
GPU_POOLS = tuple(
    replace(pool, shape=(batch, *pool.shape[1:])) for batch, pool in zip(GPU_BATCHES, POOLS, strict=False)
)
"""The pools that are not tiny, in batches whose input is at least 100 MB in 16 bits: twice the L2 cache of an H200."""
GPU_GRID: dict[str, tuple[Cell, ...]] = {"pool": tuple(chain.from_iterable(pool.forms() for pool in GPU_POOLS))}
COPY = Limit("copy", 4096)  # 64 MiB: more than any cache here
MATMULS = tuple(Limit(f"matmul {side}", side, is_product=True) for side in (1024, 1536))
CELLS: dict[str, Cell] = {cell.name: cell for cell in (*chain(*GRID.values(), *GPU_GRID.values()), COPY, *MATMULS)}


def problem(cell: str, op: str, mode: str) -> BenchProblem:
    """The problem that three names stand for.

    >>> problem("P2", "max", "forward").cell.output()
    (8, 64, 56, 56)
    """
    return BenchProblem(CELLS[cell], op, mode)


def parts(name: str) -> set[str]:
    """The words that a cell may be chosen by, all that are given at once.

    >>> sorted(parts("P1-f16-last"))
    ['P1', 'f16', 'last']
    """
    return {*name.split("-")}


def problems(
    suite: str,
    cells: Collection[str],
    ops: Collection[str],
    modes: Collection[str],
    grid: Mapping[str, tuple[Cell, ...]] = GRID,
) -> list[BenchProblem]:
    """The part of a suite that the names choose, ordered by mode, operator and cell; no names choose everything.

    >>> [str(p) for p in problems("pool", ["P9"], [], ["jvp"])]
    ['P9 max jvp', 'P9 avg jvp']
    >>> [str(p) for p in problems("pool", ["P1-f16", "P7-f32"], ["max"], ["jvp"], GPU_GRID)]
    ['P1-f16-first max jvp', 'P1-f16-last max jvp', 'P7-f32-first max jvp']
    """
    chosen = [cell for cell in grid[suite] if not cells or any(parts(name) <= parts(cell.name) for name in cells)]
    wanted_ops = [op for op in dict.fromkeys(op for cell in chosen for op in cell.ops) if op in ops or not ops]
    wanted_modes = [mode for mode in MODES if mode in modes or not modes]
    return [
        BenchProblem(cell, op, mode)
        for mode in wanted_modes
        for op in wanted_ops
        for cell in chosen
        if op in cell.ops and mode in cell.modes
    ]


# --- numbers ----------------------------------------------------------------------------------------------------------

SMALL_BITS = 14


@dataclass(frozen=True)
class Data:
    """``tangents`` belong to the inputs that the problem differentiates; ``cotangent`` to the result."""

    inputs: tuple[Array, ...]
    tangents: tuple[Array, ...]
    cotangent: Array


def data(problem: BenchProblem) -> Data:
    """Inputs, and tangents and a cotangent that differ from them: a compiler merges equal ones.

    >>> data(problem("P11", "max", "jvp")).inputs[0].shape
    (1, 16, 14, 14)
    """
    shapes = problem.cell.inputs()
    array = partial(_array if problem.cell.dtype == "f32" else _small_array, dtype=DTYPES[problem.cell.dtype])
    inputs = tuple(array(f"{problem.cell.name} {name}", shape) for name, shape in shapes.items())
    active = [list(shapes.items())[i] for i in problem.cell.active()] if problem.mode == "jvp" else []
    tangents = tuple(array(f"{problem.cell.name} {name} tangent", shape) for name, shape in active)
    if problem.mode != "vjp" or isinstance(problem.cell, Network):  # the derivative of a loss
        return Data(inputs, tangents, np.ones((), np.float32))
    return Data(inputs, tangents, array(f"{problem.cell.name} cotangent", problem.cell.output()))


def labels(network: Network) -> Array:
    """A class for every image of a batch."""
    return np.arange(network.output()[0]) % network.output()[1]


def _array(name: str, shape: Shape, dtype: DType) -> Array:
    """Numbers between −2 and 2, no two equal of 2²⁴ neighbours, so that no rule about ties tells contenders apart.

    Weights are smaller by the root of what they add up.
    """
    bits = min(24, max(1, (prod(shape) - 1).bit_length()))
    step = 2.0 ** (2 - bits) * (prod(shape[1:]) ** -0.5 if " weight" in name else 1)
    numbers = _shuffled(prod(shape), bits, crc32(name.encode())).astype(dtype)
    numbers -= 2 ** (bits - 1)
    numbers *= np.float32(step)
    return numbers.reshape(shape)


def _small_array(name: str, shape: Shape, dtype: DType) -> Array:
    """Numbers of 16 bits between −2 and 2, none of them tiny and no two equal of 2¹⁴ neighbours, which windows are not.

    In both formats 2 is 0x4000, and 0x2000 a normal number far below it. The 13 bits between them and the sign vary.
    """
    numbers = _shuffled(prod(shape), SMALL_BITS, crc32(name.encode())).astype(np.uint16)
    return ((numbers & 1) << 15 | 0x2000 | numbers >> 1).view(dtype).reshape(shape)


def _shuffled(count: int, bits: int, seed: int) -> Array:
    """Numbers of ``bits`` bits in an order that looks random, ten times faster than one that is; 2ᵇ are all different.

    Modulo 2ᵇ, an exclusive or with the number's own upper half and a product with an odd number are both one-to-one.
    """
    mask = np.uint32((1 << bits) - 1)
    numbers = (np.arange(count, dtype=np.uint32) ^ np.uint32(seed)) & mask
    for odd in (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35):
        numbers ^= numbers >> np.uint32((bits + 1) // 2)
        numbers *= np.uint32(odd)
        numbers &= mask
    return numbers
