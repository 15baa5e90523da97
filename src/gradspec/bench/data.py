"""The numbers a problem is tried on: the same in every process, made from its name."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from gradspec.bench.grid import BenchProblem, Network, Shape

Array = npt.NDArray[Any]


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
    inputs = tuple(_array(f"{problem.cell.name} {name}", shape) for name, shape in shapes.items())
    active = [list(shapes.items())[i] for i in problem.cell.active()] if problem.mode == "jvp" else []
    tangents = tuple(_array(f"{problem.cell.name} {name} tangent", shape) for name, shape in active)
    if problem.mode != "vjp" or isinstance(problem.cell, Network):  # the derivative of a loss
        return Data(inputs, tangents, np.ones((), np.float32))
    return Data(inputs, tangents, _array(f"{problem.cell.name} cotangent", problem.cell.output()))


def labels(network: Network) -> Array:
    """A class for every image of a batch."""
    return np.arange(network.output()[0]) % network.output()[1]


def _array(name: str, shape: Shape) -> Array:
    """Numbers between −2 and 2, no two equal up to 2²⁴ of them, so that no rule about ties tells contenders apart.

    Weights are smaller by the root of what they add up.
    """
    bits = max(1, (prod(shape) - 1).bit_length())
    step = 2.0 ** (2 - bits) * (prod(shape[1:]) ** -0.5 if " weight" in name else 1)
    numbers = _shuffled(prod(shape), bits, crc32(name.encode())).astype(np.float32)
    numbers -= 2 ** (bits - 1)
    numbers *= np.float32(step)
    return numbers.reshape(shape)


def _shuffled(count: int, bits: int, seed: int) -> Array:
    """``count`` different numbers of ``bits`` bits in an order that looks random, ten times faster than one that is.

    Modulo 2ᵇ, an exclusive or with the number's own upper half and a product with an odd number are both one-to-one.
    """
    mask = np.uint32((1 << bits) - 1)
    numbers = np.arange(count, dtype=np.uint32) ^ (np.uint32(seed) & mask)
    for odd in (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35):
        numbers ^= numbers >> np.uint32((bits + 1) // 2)
        numbers *= np.uint32(odd)
        numbers &= mask
    return numbers
