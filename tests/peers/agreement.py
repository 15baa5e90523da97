"""Agreement of a specification with a peer library, in value and in both derivative modes.

PyTorch and JAX spell derivatives alike, ``jvp(f, primals, tangents)`` and ``vjp(f, *primals)``, so one law serves both.

Selections must be equal, down to the sign of a zero. Two computations of one sum differ by rounding, and by no more
than this. In any summation tree over N terms a term meets at most N − 1 additions, a product, and a quotient or a
product with a rounded reciprocal, so either result is within Γ·S of the truth, where Γ = (1+u)^(N+2) − 1, u is the unit
roundoff and S the sum of the terms' absolute values. S comes from the peer: these maps have no negative coefficients,
so its result Ŝ on absolute values is within Γ·S of S. Hence |ours − theirs| ≤ 2Γ/(1 − Γ)·Ŝ ≤ 2·(N + 3)·u·Ŝ for N up to
10⁷. The terms of one result can be told apart by an entry of one of its tensors, so N is at most the count of numbers
that went in.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradspec import spec

MODES = ("value", "jvp", "vjp")
UNIT_ROUNDOFF = 2.0**-53

Arrays = Sequence[np.ndarray | None]


@dataclass(frozen=True)
class Peer:
    """A library that differentiates functions of its own arrays."""

    array: Callable[[np.ndarray], Any]
    call: Callable[..., Any]
    jvp: Callable[..., Any]
    vjp: Callable[..., Any]

    def run(self, mode: str, function: Callable[..., Any], inputs: Arrays, tangents: Arrays, g: Any) -> list[Any]:
        primals = self._arrays(inputs)
        if mode == "value":
            return _numpy(self.call(function, *primals))
        if mode == "jvp":
            return _numpy(self.jvp(function, primals, self._arrays(tangents))[1])
        return _numpy(self.vjp(function, *primals)[1](self.array(g)))

    def _arrays(self, arrays: Arrays) -> tuple[Any, ...]:
        return tuple(self.array(a) for a in arrays if a is not None)


@dataclass(frozen=True)
class Pair:
    """An operator of the specification with its attributes, and the peer's function that should equal it.

    ``inputs`` are differentiated, and None is one left out; ``constants`` follow them and are known to ``theirs``.
    """

    operator: str
    attributes: Mapping[str, Any]
    theirs: Callable[..., Any]
    inputs: Arrays
    constants: Sequence[np.ndarray] = ()

    def ours(self, mode: str, tangents: Arrays, g: np.ndarray) -> list[np.ndarray]:
        further = {"value": (), "jvp": tangents, "vjp": (g,)}[mode]
        function = getattr(spec, self.operator if mode == "value" else f"{self.operator}_{mode}")
        arguments = map(plain, (*self.inputs, *self.constants, *further))
        return _numpy(function(*arguments, **self.attributes))


def check_selection(peer: Peer, pair: Pair, *modes: str, multiples_of: int = 1) -> None:
    """Equality. Tangents and cotangents are whole numbers, so that sums of them are exact in every order.

    The sign of a zero is compared in the value alone: one that a cotangent leaves behind belongs to no cell.
    """
    along = directions(peer, pair, lambda *shape, seed: multiples_of * whole_numbers(*shape, seed=seed))
    for mode in modes:
        ours, theirs = pair.ours(mode, *along), peer.run(mode, pair.theirs, pair.inputs, *along)
        for a, b in zip(ours, theirs, strict=True):
            if mode == "value":
                assert_identical(a, b)
            else:
                np.testing.assert_array_equal(a, b, mode, strict=True)


def check_sum(peer: Peer, pair: Pair, *modes: str) -> None:
    """Equality up to the rounding bound derived above."""
    tangents, g = directions(peer, pair, reals)
    terms = sum(a.size for a in (*pair.inputs, *tangents, g) if a is not None)
    for mode in modes:
        scales = peer.run(mode, pair.theirs, _absolute(pair.inputs), _absolute(tangents), np.abs(g))
        check_within(peer, pair, mode, (tangents, g), [2 * (terms + 3) * UNIT_ROUNDOFF * scale for scale in scales])


def check_within(
    peer: Peer, pair: Pair, mode: str, along: tuple[Arrays, np.ndarray], bounds: Sequence[np.ndarray]
) -> None:
    """Each result within its bound, along the given tangents and cotangent."""
    ours, theirs = pair.ours(mode, *along), peer.run(mode, pair.theirs, pair.inputs, *along)
    for a, b, bound in zip(ours, theirs, bounds, strict=True):
        assert a.shape == b.shape
        assert np.all(np.abs(a - b) <= bound), f"{mode}: off by {np.max(np.abs(a - b))}"


def assert_identical(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Equal shapes and numbers, NaN where NaN, and zeros of equal sign."""
    assert ours.shape == theirs.shape
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(np.signbit(ours[ours == 0]), np.signbit(theirs[theirs == 0]))


def plain(array: np.ndarray | None) -> spec.Tensor | None:
    """The array's numbers as Python ints and floats, in a shape that survives an empty axis."""
    return None if array is None else spec.Tensor(array.shape, array.ravel().tolist())


def _numpy(results: Any) -> list[np.ndarray]:
    several = results if isinstance(results, tuple | list) else (results,)
    return [
        np.array(r.cells).reshape(r.shape) if isinstance(r, spec.Tensor) else np.asarray(r)
        for r in several
        if r is not None
    ]


def directions(peer: Peer, pair: Pair, draw: Callable[..., np.ndarray]) -> tuple[Arrays, np.ndarray]:
    """Tangents of the inputs and a cotangent of the output."""
    (value,) = peer.run("value", pair.theirs, pair.inputs, (), None)
    tangents = [None if a is None else draw(*a.shape, seed=10 + i) for i, a in enumerate(pair.inputs)]
    return tangents, draw(*value.shape, seed=20)


def reals(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def whole_numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(float)


def _absolute(arrays: Arrays) -> Arrays:
    return [None if a is None else np.abs(a) for a in arrays]
