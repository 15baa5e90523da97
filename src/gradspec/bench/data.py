"""The numbers a problem is tried on: the same in every process, made from its name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from gradspec.bench.grid import BenchProblem, Network, Shape
from gradspec.conformance.model.problem import DTYPES

Array = npt.NDArray[Any]
SMALL_BITS = 14


@dataclass(frozen=True)
class Data:
    """``tangents`` belong to the inputs that the problem differentiates; ``cotangent`` to the result."""

    inputs: tuple[Array, ...]
    tangents: tuple[Array, ...]
    cotangent: Array


def data(problem: BenchProblem) -> Data:
    """Inputs, and tangents and a cotangent that differ from them: a compiler merges equal ones.

    >>> from gradspec.bench.grid import problem
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


def _array(name: str, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """Numbers between −2 and 2, no two equal of 2²⁴ neighbours, so that no rule about ties tells contenders apart.

    Weights are smaller by the root of what they add up.
    """
    bits = min(24, max(1, (prod(shape) - 1).bit_length()))
    step = 2.0 ** (2 - bits) * (prod(shape[1:]) ** -0.5 if " weight" in name else 1)
    numbers = _shuffled(prod(shape), bits, crc32(name.encode())).astype(dtype)
    numbers -= 2 ** (bits - 1)
    numbers *= np.float32(step)
    return numbers.reshape(shape)


def _small_array(name: str, shape: Shape, dtype: np.dtype[Any]) -> Array:
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
