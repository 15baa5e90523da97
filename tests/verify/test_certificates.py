"""Certificates: proofs are accepted, and nothing that is false is, whatever is done to a certificate or its file."""

import ast
import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradspec as gs
from gradspec.interop.array_files import write_arrays
from gradspec.verify import (
    Certificate,
    Property,
    certificate,
    check,
    check_files,
    checker,
    checker_bounds,
    checker_operators,
    prove,
)
from gradspec.verify.certificate import LEAF, InputTree, SignTree, network_digest, property_digest, read_certificate
from gradspec.verify.checker_bounds import CheckedNetwork, plain_box
from patience import PATIENCE

# --- networks ---------------------------------------------------------------------------------------------------------


def _random(seed: int, *shape: int) -> np.ndarray:
    """Numbers with few digits, so that exact evaluation is quick."""
    return np.round(np.random.default_rng(seed).normal(size=shape) * 8).astype(np.float32) / 8


def _dense(*sizes: int) -> gs.Graph:
    weights = [_random(i, b, a) / 2 for i, (a, b) in enumerate(itertools.pairwise(sizes))]

    def network(x):
        for i, w in enumerate(weights):
            x = gs.linear(gs.relu(x) if i else x, w, _random(10 + i, len(w)) / 4)
        return x

    return gs.trace(network, gs.f32[sizes[0]])


def _residual(x):
    x = gs.relu(gs.conv2d(x, _random(0, 2, 1, 3, 3) / 2, _random(1, 2) / 4, padding=1))
    x = gs.max_pool2d(x, 3, 2, padding=1)
    x = gs.relu(x + gs.conv2d(gs.relu(x), _random(2, 2, 2, 3, 3) / 4, padding=1))
    return gs.linear(gs.flatten(gs.global_avg_pool(x, 2)), _random(3, 2, 2))


NETWORKS: dict[str, tuple[Callable[[], gs.Graph], float]] = {
    "inputs": (lambda: _dense(3, 6, 6, 2), 1.0),
    "signs": (lambda: _dense(14, 8, 8, 2), 0.25),
    "residual": (lambda: gs.trace(_residual, gs.f32[1, 4, 4]), 0.5),
}


@dataclass(frozen=True)
class Proved:
    graph: gs.Graph
    low: np.ndarray
    high: np.ndarray
    least: float
    """Of the first output, at sampled points."""
    property: Property
    certificate: Certificate

    def stating(self, bound: float) -> Property:
        """That the first output is at least the bound, everywhere."""
        rows = np.zeros((1, self.graph.outputs[0].type.size))
        rows[0, 0] = -1
        return Property.always(self.low, self.high, C=rows, b=[-bound])


def _least(graph: gs.Graph, low: np.ndarray, high: np.ndarray) -> float:
    random = np.random.default_rng(0)
    parts = random.integers(0, 5, (200, *low.shape)) / np.float32(4)
    batch = graph.batch(len(parts))
    return float(batch(low + parts.astype(np.float32) * (high - low))[:, 0].min())


def _proved(name: str, kernels: str = "any") -> Proved:
    return _made(name, kernels)


@cache
def _made(name: str, kernels: str) -> Proved:
    """A proof of a bound between what the usual lines prove of the whole box and what is true."""
    make, radius = NETWORKS[name]
    graph = make()
    centre = _random(20, *graph.inputs[0].shape)
    found = Proved(graph, centre - radius, centre + radius, 0.0, None, None)  # type: ignore[arg-type]
    found = replace(found, least=_least(graph, found.low, found.high))
    root = float(gs.bounds(graph, found.low, found.high, kernels=kernels).lower[0])
    for share in (0.4, 0.15, 0.0):
        stated = found.stating(root + share * (found.least - root) - 1e-3)
        result = prove(graph, stated, timeout=PATIENCE, kernels=kernels)
        if result.status == "proved" and result.certificate is not None:
            return replace(found, property=stated, certificate=result.certificate)
    raise AssertionError(result)


PROOFS = [("inputs", "any"), ("signs", "any"), ("residual", "any"), ("inputs", "real")]


@pytest.mark.rows(1)
@pytest.mark.parametrize(("name", "kernels"), PROOFS)
def test_proofs_are_accepted_and_survive_a_file(name: str, kernels: str, tmp_path: Path) -> None:
    proof = _proved(name, kernels)
    verdict = check(proof.certificate, proof.graph, proof.property)
    assert verdict
    assert verdict.kernels == kernels
    assert "accepted" in str(verdict)
    proof.certificate.save(tmp_path / "proof.npz")
    again = check(tmp_path / "proof.npz", proof.graph, proof.property)
    assert again
    assert again.leaves == verdict.leaves


@pytest.mark.exhaustive
def test_some_proofs_have_trees() -> None:
    assert len(_proved("inputs").certificate.cases[0].axis) > 1
    assert max(len(_proved(name).certificate.cases[0].node) for name in ("signs", "residual")) > 1
    assert len(_proved("signs").certificate.cases[0].refined_shares) > 1


def test_files_are_checked_against_files(tmp_path: Path) -> None:
    graph = gs.trace(lambda x: gs.relu(x), gs.f32[1])
    graph.save(tmp_path / "model.gradspec")
    text = "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (>= X_0 0))(assert (<= X_0 1))(assert (>= Y_0 2))"
    (tmp_path / "p.vnnlib").write_text(text)
    stated = gs.verify.read_vnnlib(tmp_path / "p.vnnlib")
    _whole(graph, stated).save(tmp_path / "proof.npz")
    assert check_files(tmp_path / "proof.npz", tmp_path / "model.gradspec", tmp_path / "p.vnnlib")
    (tmp_path / "p.vnnlib").write_text(text.replace("2", "0.5"))
    assert not check_files(tmp_path / "proof.npz", tmp_path / "model.gradspec", tmp_path / "p.vnnlib")


# --- certificates that were changed -----------------------------------------------------------------------------------


def _whole(graph: gs.Graph, stated: Property, kernels: str = "any") -> Certificate:
    """The claim that the usual lines prove each case as a whole."""
    leaf = InputTree(np.array([LEAF], np.int32), np.zeros(1))
    return Certificate(kernels, network_digest(graph), property_digest(stated), (leaf,) * len(stated.cases))


def _changed(found: Certificate, **arrays: Any) -> Certificate:
    """The certificate with arrays of its one case replaced."""
    (case,) = found.cases
    return replace(found, cases=(replace(case, **arrays),))


def _mutants(found: Certificate, seed: int = 0) -> Iterator[tuple[str, Certificate]]:
    """Every array of the only case with numbers moved, exchanged, dropped, repeated and replaced."""
    random = np.random.default_rng(seed)
    (case,) = found.cases
    for field in fields(case):
        array = getattr(case, field.name)
        if not array.size:
            continue
        flat = array.reshape(-1)
        at = int(random.integers(len(flat)))
        values = [-1, 0, 1, 2**31 - 1, -(2**31)] if array.dtype.kind == "i" else [-1e30, -1, 0, 0.5, 1, 1e30, np.nan]
        for value in values:
            new = flat.copy()
            new[at] = value
            yield f"{field.name}[{at}] = {value}", _changed(found, **{field.name: new.reshape(array.shape)})
        changes = [("swapped", flat[::-1]), ("rolled", np.roll(flat, 1)), ("moved", flat + 1), ("negative", -flat)]
        for how, new in changes:
            yield f"{field.name} {how}", _changed(found, **{field.name: new.reshape(array.shape)})
        yield f"{field.name} shorter", _changed(found, **{field.name: array[:-1]})
        yield f"{field.name} longer", _changed(found, **{field.name: np.concatenate([array, array[-1:]])})
        yield f"{field.name} empty", _changed(found, **{field.name: array[:0]})


@pytest.mark.parametrize("name", NETWORKS)
def test_no_change_of_a_certificate_proves_what_is_false(name: str) -> None:
    proof = _proved(name)
    false = proof.stating(proof.least + 1e-4)
    forged = replace(proof.certificate, property=property_digest(false))
    assert not check(forged, proof.graph, false)
    for what, mutant in _mutants(forged):
        assert not check(mutant, proof.graph, false), what


@pytest.mark.parametrize("name", NETWORKS)
def test_changes_of_a_certificate_are_refused_with_a_reason_or_harmless(name: str) -> None:
    proof = _proved(name)
    for _, mutant in _mutants(proof.certificate, seed=1):
        verdict = check(mutant, proof.graph, proof.property)
        assert verdict or len(verdict.reason) > 10


STRUCTURE = ("shorter", "longer", "empty")
NEEDED = {"axis", "cut", "node", "cell", "weights", "first", "shares", "share_cells", "multipliers", "multiplier_cells"}
NEEDED |= {"refined", "refined_rows", "refined_share_counts", "refined_share_cells", "refined_shares"}


@pytest.mark.parametrize("name", NETWORKS)
def test_arrays_that_lack_something_or_have_too_much_are_refused(name: str) -> None:
    proof = _proved(name)
    for what, mutant in _mutants(proof.certificate):
        field, how = what.split(" ", 1)
        if how in STRUCTURE and field in NEEDED:
            assert not check(mutant, proof.graph, proof.property), what


def test_other_networks_properties_and_cases_are_refused() -> None:
    proof, other = _proved("inputs"), _proved("signs")
    for changed, reason in [
        (replace(proof.certificate, network=network_digest(other.graph)), "another network"),
        (replace(proof.certificate, property=property_digest(other.property)), "another property"),
        (replace(proof.certificate, cases=()), "cases"),
        (replace(proof.certificate, cases=other.certificate.cases), ""),
        (replace(proof.certificate, kernels="some"), "kernels"),
    ]:
        verdict = check(changed, proof.graph, proof.property)
        assert not verdict
        assert reason in verdict.reason
    assert "another network" in check(proof.certificate, other.graph, proof.property).reason


def test_a_network_is_known_by_all_that_it_computes() -> None:
    def digest(function: Callable[..., Any], shape: Any = gs.f32[1, 4, 4]) -> str:
        return network_digest(gs.trace(function, shape))

    weight = _random(0, 1, 1, 3, 3)
    changed = weight.copy()
    changed[0, 0, 1, 1] = np.nextafter(changed[0, 0, 1, 1], np.float32(9))
    found = [
        digest(lambda x: gs.conv2d(x, weight)),
        digest(lambda x: gs.conv2d(x, changed)),
        digest(lambda x: gs.conv2d(x, weight, padding=1)),
        digest(lambda x: gs.conv2d(x, weight), gs.f32[1, 5, 4]),
        digest(lambda x: gs.relu(gs.conv2d(x, weight))),
        digest(lambda x: x - gs.relu(x)),
        digest(lambda x: gs.relu(x) - x),
    ]
    assert len(set(found)) == len(found)
    assert found[0] == digest(lambda called_otherwise: gs.conv2d(called_otherwise, weight))


def test_a_tree_must_cover_the_box() -> None:
    """Of two halves, each with half of a true statement, none alone will do, nor a cut that leaves something out."""
    graph = gs.trace(lambda x: gs.relu(x) + gs.relu(-x), gs.f32[1])
    stated = Property.always([-1], [1], C=[[1]], b=["1.01"])
    empty = _whole(graph, stated)

    def tree(axis: list[int], cut: list[float]) -> Certificate:
        return _changed(empty, axis=np.array(axis, np.int32), cut=np.array(cut))

    assert check(tree([0, -1, -1], [0, 0, 0]), graph, stated)
    for axis, cut in [
        ([0, -1], [0, 0]),
        ([0, -1, -1, -1], [0, 0, 0, 0]),
        ([0, -1, -1], [1.5, 0, 0]),
        ([0, -1, -1], [-1.5, 0, 0]),
        ([0, -1, -1], [np.nan, 0, 0]),
        ([1, -1, -1], [0, 0, 0]),
        ([-2, -1, -1], [0, 0, 0]),
        ([], []),
    ]:
        assert not check(tree(axis, cut), graph, stated), (axis, cut)


# --- the checker's own bounds -----------------------------------------------------------------------------------------


def _normal(x):
    return gs.batch_norm(x, _random(1, 2), np.abs(_random(2, 2)) + 1, _random(3, 2), _random(4, 2))


OPERATORS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "conv1d": (lambda x: gs.conv(x, _random(1, 4, 1, 3), _random(2, 4), stride=2, padding=2, groups=2), (2, 7)),
    "conv2d": (lambda x: gs.conv2d(x, _random(1, 3, 2, 2, 3), dilation=(2, 1), padding=((1, 0), (0, 2))), (2, 4, 5)),
    "conv2d, batched": (lambda x: gs.conv2d(x, _random(1, 3, 2, 3, 3), _random(2, 3), stride=3), (2, 2, 6, 4)),
    "conv2d, one window": (lambda x: gs.conv2d(x, _random(1, 3, 2, 2, 3), dilation=(3, 1)), (2, 4, 3)),
    "conv3d": (lambda x: gs.conv3d(x, _random(1, 2, 1, 2, 2, 2), padding=1), (1, 2, 3, 2)),
    "linear": (lambda x: gs.linear(x, _random(1, 4, 3), _random(2, 4)), (2, 3)),
    "matmul": (lambda x: gs.matmul(_random(1, 2, 3, 2), x), (2, 4)),
    "matmul, stacked": (lambda x: gs.matmul(x, _random(1, 2, 4, 3)), (2, 2, 4)),
    "arithmetic": (lambda x: (3.0 - x * _random(1, 3)) / np.float32([4, 0.5, 3]) - gs.scale(x, 0.1), (2, 3)),
    "moved": (lambda x: gs.transpose(gs.reshape(x, (3, 4)), (1, 0))[1:, ::-2], (2, 6)),
    "padded": (lambda x: gs.pad(x, ((1, 0), (2, 1)), value=0.5), (2, 3)),
    "joined": (lambda x: gs.concat([x, _random(1, 2, 2), -x], axis=1), (2, 3)),
    "repeated": (lambda x: gs.broadcast_to(x, (2, 3, 2)) + _random(1, 2, 3, 2), (3, 1)),
    "added": (lambda x: gs.sum(x, (0, 2)), (2, 3, 4)),
    "constants": (lambda x: x + (gs.broadcast_to(_random(1, 1, 3), (2, 3)) * _random(2, 2, 3)), (2, 3)),
    "avg_pool": (lambda x: gs.avg_pool2d(x, (2, 3), (1, 2), padding=1, ceil_mode=True), (2, 4, 4)),
    "avg_pool, real cells": (lambda x: gs.avg_pool1d(x, 3, 2, padding=1, count_include_pad=False), (2, 6)),
    "avg_pool, divisor": (lambda x: gs.avg_pool1d(x, 2, divisor_override=-3), (2, 6)),
    "avg_pool, adaptive": (lambda x: gs.adaptive_avg_pool1d(x, 5), (2, 3)),
    "avg_pool, global": (lambda x: gs.global_avg_pool(x, 2), (2, 3, 3)),
    "batch_norm": (_normal, (3, 2, 2)),
    "relu": (gs.relu, (7,)),
    "leaky_relu": (lambda x: gs.leaky_relu(x, 0.3), (7,)),
    "max_pool": (lambda x: gs.max_pool2d(x, 3, 2, padding=1), (2, 4, 5)),
    "max_pool, padding alone": (lambda x: gs.max_pool1d(x, 2, 1, padding=((3, 0),)), (2, 4)),
    "max_pool, dilated": (lambda x: gs.max_pool1d(x, 2, 1, dilation=2), (2, 6)),
    "max_pool, adaptive": (lambda x: gs.adaptive_max_pool1d(x, 5), (2, 3)),
    "residual": (lambda x: gs.relu(x + gs.relu(gs.linear(gs.relu(x), _random(1, 3, 3)))), (2, 3)),
    "twice": (lambda x: (gs.relu(x) - 2.0 * gs.relu(x), gs.relu(x)), (4,)),
}


def _lowest(network: CheckedNetwork, low: np.ndarray, high: np.ndarray, rows: list[np.ndarray]) -> np.ndarray:
    graph = network.graph
    inputs = {graph.inputs[0]: (low[None].astype(float), high[None].astype(float))}
    found = network.boxes(inputs, network.tighten(inputs))
    targets = [(v, r[None].astype(float)) for v, r in zip(graph.outputs, rows, strict=True)]
    return network.lower(found, targets, {}, {})[0], found


@pytest.mark.parametrize("kernels", ["real", "any"])
@pytest.mark.parametrize("name", OPERATORS)
def test_bounds_of_the_checker_are_sound_and_at_points_tight(name: str, kernels: str) -> None:
    function, shape = OPERATORS[name]
    graph = gs.trace(function, gs.f32[shape])
    network, centre = CheckedNetwork(graph, kernels), _random(30, *shape)
    random = np.random.default_rng(1)
    rows = [random.integers(-2, 3, (5, *v.shape)) for v in graph.outputs]
    for radius in (0.0, 0.5, 2.0):
        low, high = centre - np.float32(radius), centre + np.float32(radius)
        bound, found = _lowest(network, low, high, rows)
        for part in [np.zeros(shape), *(random.integers(-2, 3, shape) / 2 for _ in range(4))]:
            x = centre + radius * part
            exact = gs.evaluate(graph, x, domain=gs.ieee("f64") if name == "batch_norm" else gs.exact)
            exact = exact if isinstance(exact, tuple) else (exact,)
            cells = [np.array([float(c) for c in t.cells]) for t in exact]
            value = sum(r.reshape(len(r), -1) @ y for r, y in zip(rows, cells, strict=True))
            assert np.all(bound <= value + 1e-12)
            for v, y in zip(graph.outputs, cells, strict=True):
                assert np.all(found[v].low.ravel() <= y + 1e-12)
                assert np.all(y <= found[v].high.ravel() + 1e-12)
            if not radius:
                assert np.all(value - bound <= (1e-11 if kernels == "real" else 1e-3))


def test_operators_that_are_not_known_are_refused_by_name() -> None:
    graph = gs.trace(lambda x: gs.tanh(x), gs.f32[2])
    stated = Property.always([0, 0], [1, 1], C=[[1, 0]], b=[2])
    assert "tanh" in check(_whole(graph, stated), graph, stated).reason


def _twice_relu(bounds: list[str]) -> tuple[gs.Graph, Property, Certificate]:
    """Over −1 ≤ x ≤ 1, 2·relu(x) − x ≥ 0, and a bound of it for each conjunction: two signs, by multipliers of them."""
    graph = gs.trace(lambda x: gs.relu(x * 1.0) * 2.0 - x, gs.f32[1])
    stated = Property.always([-1], [1], C=[[-1]] * len(bounds), b=bounds)
    number = next(i for i, node in enumerate(graph.nodes) if node.op.name == "relu")
    count = len(bounds)
    trees = SignTree(
        first=np.full(count, -1, np.int32),
        node=np.array([number, LEAF, LEAF] * count, np.int32),
        cell=np.zeros(3 * count, np.int32),
        weights=np.ones(2 * count, np.float32),
        shared=np.zeros(0, np.int32),
        share_counts=np.zeros((2 * count, 0), np.int32),
        share_cells=np.zeros(0, np.int32),
        shares=np.zeros(0, np.float32),
        multiplied=np.array([number], np.int32),
        multiplier_counts=np.ones((2 * count, 1), np.int32),
        multiplier_cells=np.zeros(2 * count, np.int32),
        multipliers=np.float32([1, -1] * count),
        refined=np.zeros(0, np.int32),
        refined_rows=np.zeros(0, np.int32),
        refined_share_counts=np.zeros((0, 0), np.int32),
        refined_share_cells=np.zeros(0, np.int32),
        refined_shares=np.zeros(0, np.float32),
    )
    return graph, stated, replace(_whole(graph, stated), cases=(trees,))


def test_multipliers_count_only_where_the_sign_is_known() -> None:
    graph, stated, found = _twice_relu(["1/1000"])
    one = np.ones(2, np.float32)
    assert check(found, graph, stated)
    for wrong in (-one, 0 * one, np.float32([-1, 1]), 3 * one):
        assert not check(_changed(found, multipliers=wrong), graph, stated)


def test_every_conjunction_needs_a_tree_that_refutes_it() -> None:
    graph, stated, found = _twice_relu(["1/1000", "1/500"])
    assert check(found, graph, stated)
    (trees,) = found.cases
    for wrong in (
        {"node": trees.node[:3], "cell": trees.cell[:3]},
        {"node": trees.node[[0, 1, 2, 1, 2, 0]]},
        {"first": np.int32([-1, 0])},
        {"first": np.int32([-2, -1]), "weights": np.ones(5, np.float32)},
        {"weights": np.ones(3, np.float32)},
        {"weights": np.ones(5, np.float32)},
        {"weights": np.float32([1, 1, 1, -1])},
        {"weights": np.float32([1, 1, 1, np.nan])},
    ):
        assert not check(_changed(found, **wrong), graph, stated), wrong
    graph, false, found = _twice_relu(["1/1000", "-1/2"])
    for what, mutant in _mutants(found):
        assert not check(mutant, graph, false), what


def test_rows_are_refuted_together_by_weights_that_are_not_negative() -> None:
    """Over −1 ≤ x ≤ 1, ``x ≤ b`` and ``−x ≤ b``: not both if b is negative."""
    graph = gs.trace(lambda x: gs.concat([x, -x]), gs.f32[1])
    stated = Property.never([-1], [1], C=[[1, 0], [0, 1]], b=["-1/4", "-1/4"])
    _, _, found = _twice_relu(["0"])
    leaf = {"node": np.int32([LEAF]), "cell": np.int32([0]), "multiplied": np.zeros(0, np.int32)}
    leaf |= {name: np.zeros((1, 0), np.int32) for name in ("share_counts", "multiplier_counts")}
    leaf |= {"multiplier_cells": np.zeros(0, np.int32), "multipliers": np.zeros(0, np.float32)}
    (trees,) = _changed(found, **leaf, weights=np.float32([1, 0.75])).cases
    found = replace(_whole(graph, stated), cases=(trees,))
    assert check(found, graph, stated)
    infinite = float("inf")
    for wrong in ([1, 0], [0, 1], [1, -1], [1, infinite], [infinite] * 2, [0, 0], [1], [1, 1, 1], [[1, 1]], [1, 0.5]):
        assert not check(_changed(found, weights=np.float32(wrong)), graph, stated), wrong
    false = Property.never([-1], [1], C=[[1, 0], [0, 1]], b=["1/1000", "0"])
    forged = replace(found, property=property_digest(false))
    assert not check(_changed(forged, weights=np.float32([-1, -1])), graph, false)
    assert not any(check(mutant, graph, false) for _, mutant in _mutants(forged))


# --- every rounding term is needed ------------------------------------------------------------------------------------


def _cancelling(x):
    """``4x``: small coefficients between large ones, which cancel."""
    weights = np.array([2.0**54, *[0.25] * 16, -(2.0**54)])
    return gs.linear(gs.linear(x, np.ones((18, 1))), weights[None])


def _bent(z: Any, less: float) -> Any:
    """``max(−z, 0)`` of ``z`` less a number, which is 0 if z is taken to be positive; by a product, not a sum."""
    z = z - less
    return gs.linear(gs.concat([gs.relu(z), z]), np.float32([[1, -1]]))


def _absorbing(x):
    return (x + 2.0**25) - 2.0**25


TERMS: dict[str, tuple[str, str, gs.Graph, Property, str]] = {
    "the checker's, in boxes": (
        "+ own(steps) * size + (TINY + off)",
        "+ (TINY + off)",
        gs.trace(lambda x: gs.relu(_cancelling(x) - 0.5), gs.f64[1]),
        Property.always(["1/4"], ["1/4"], C=[[1]], b=["1/8"]),
        "real",
    ),
    "the checker's, in lines": (
        "error = own(steps + var.type.size) * size + (TINY + off)",
        "error = 0 * size + (TINY + off)",
        gs.trace(_cancelling, gs.f64[1]),
        Property.always(["1/4"], ["1/4"], C=[[1]], b=["7/8"]),
        "real",
    ),
    "the kernel's, in boxes": (
        "own(steps) * size + (TINY + off)\n        error",
        "own(steps) * size + TINY\n        error",
        gs.trace(lambda x: _bent(_absorbing(x), 0.125), gs.f32[1]),
        Property.always(["1/4"], ["1/2"], C=[[1]], b=["1/16"]),
        "any",
    ),
    "the kernel's, in lines": (
        "own(steps + var.type.size) * size + (TINY + off)",
        "own(steps + var.type.size) * size + TINY",
        gs.trace(_absorbing, gs.f32[1]),
        Property.always(["1/4"], ["1/2"], C=[[-1]], b=["-1/8"]),
        "any",
    ),
    "both of a kernel's": (
        "return np.where(mass + error < largest, error, np.inf)",
        "return 0 * mass",
        gs.trace(lambda x: gs.relu(x + 2.0**25) - 2.0**25, gs.f32[1]),
        Property.always(["1/4"], ["1/2"], C=[[-1]], b=["-1/8"]),
        "any",
    ),
}


@pytest.mark.parametrize("term", TERMS)
def test_without_a_rounding_term_something_false_is_accepted(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, graph, false, kernels = TERMS[term]
    claim, x = _whole(graph, false, kernels), np.array([0.25])
    assert not check(claim, graph, false)
    if kernels == "any":
        assert false.is_counterexample(x, graph(x.astype(np.float32)))
        assert check(_whole(graph, false, "real"), graph, false)
    else:
        assert false.is_counterexample(x, gs.evaluate(graph, x, domain=gs.exact).cells)
    source = inspect.getsource(checker_bounds)
    assert source.count(old) == 1
    mutant: dict[str, Any] = {"__name__": checker_bounds.__name__}
    exec(compile(source.replace(old, new), "mutant", "exec"), mutant)
    monkeypatch.setattr(checker, "CheckedNetwork", mutant["CheckedNetwork"])
    assert check(claim, graph, false)


def test_kernels_may_add_up_chains_of_sums_in_any_order() -> None:
    """``(x + 2²⁴) − 2²⁴ + x`` in float32: the tolerance is that of one sum, whose mass is that of all leaves."""
    graph = gs.trace(lambda x: ((x + 2.0**24) + -(2.0**24)) + x, gs.f32[1])
    network = CheckedNetwork(graph, "any")
    low = np.float32([0.5])
    found = network.boxes({graph.inputs[0]: (low[None].astype(float), low[None].astype(float))}, {})
    box = found[graph.outputs[0]]
    assert box.leaves == 4
    assert box.mass[0, 0] >= 2.0**25
    assert box.high[0, 0] - box.low[0, 0] >= 2 * (2.0**-24) * 2.0**25


def test_sums_that_may_overflow_are_not_known() -> None:
    graph = gs.trace(lambda x: (x + 3e38) - 3e38, gs.f32[1])
    stated = Property.always([0], ["1e38"], C=[[1]], b=["1e39"])
    assert check(_whole(graph, stated, "real"), graph, stated)
    assert not check(_whole(graph, stated, "any"), graph, stated)


def test_a_chord_is_above_a_convex_function() -> None:
    """In exact arithmetic, for ends that rounding is unkind to."""
    random = np.random.default_rng(0)
    low, high = -random.uniform(0, 1, 500) * 10.0 ** random.integers(-9, 9, 500), random.uniform(0, 1, 500)
    slope, intercept = checker_operators.chord(low, high, 0.0 * low, high)
    for l, u, s, i in zip(low, high, slope, intercept, strict=True):  # noqa: E741
        exact = [gs.exact.scalar(float(v)) for v in (l, u, s, i)]
        assert exact[3] >= -(exact[2] * exact[0])
        assert exact[3] >= exact[1] - exact[2] * exact[1]


def test_a_box_of_one_number_is_that_number() -> None:
    box = plain_box(np.zeros((1, 2)), np.ones((1, 2)))
    assert np.array_equal(box.size, np.ones((1, 2)))


# --- files ------------------------------------------------------------------------------------------------------------


def _saved(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    graph = gs.trace(lambda x: gs.relu(x), gs.f32[1])
    path = tmp_path / "proof.npz"
    _whole(graph, Property.always([0], [1], C=[[1]], b=[2])).save(path)
    with np.load(path) as archive:
        return path, dict(archive)


HEADERS = [
    ('"version": 2', '"version": 1'),
    ('"version": 2', '"version": 1.0'),
    ('"version": 2', '"version": true'),
    ('"kernels": "any"', '"kernels": "all"'),
    ('"kinds": ["inputs"]', '"kinds": ["outputs"]'),
    ('"kinds": ["inputs"]', '"kinds": []'),
    ('"kinds": ["inputs"]', '"kinds": "inputs"'),
    ('"kinds": ["inputs"]', '"kinds": [["inputs"]]'),
    ('"inputs_axis": [[1]]', '"inputs_axis": [[2]]'),
    ('"inputs_axis": [[1]]', '"inputs_axis": [[-1], [2]]'),
    ('"inputs_axis": [[1]]', '"inputs_axis": [[1073741824, 1073741824]]'),
    ('"inputs_axis": [[1]]', '"inputs_axis": [1]'),
    ('"inputs_axis": [[1]]', '"inputs_axis": [[]]'),
    ('"network": "', '"network": 3, "other": "'),
    ('"kernels"', '"kernels": "any", "kernels"'),
    ("{", ""),
    ("{", "\xff{"),
]


@pytest.mark.parametrize(("old", "new"), HEADERS)
def test_headers_that_say_something_else_are_refused(old: str, new: str, tmp_path: Path) -> None:
    path, arrays = _saved(tmp_path)
    text = arrays["header"].tobytes().decode()
    assert old in text
    arrays["header"] = np.frombuffer(text.replace(old, new, 1).encode("latin-1"), np.uint8)
    write_arrays(str(path), arrays)
    with pytest.raises(gs.FormatError):
        read_certificate(path)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path, arrays = _saved(tmp_path)
    content = path.read_bytes()
    random = np.random.default_rng(0)
    for length in (0, 3, 10, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        _refused_or_read(path)
    for _ in range(40):
        damaged = bytearray(content)
        damaged[int(random.integers(len(content)))] ^= 1 << int(random.integers(8))
        path.write_bytes(damaged)
        _refused_or_read(path)
    for change in [
        {"more": np.zeros(1)},
        {"inputs_cut": np.zeros(1, np.float32)},
        {"inputs_cut": np.zeros((1, 1))},
        {"signs_first": np.array([object()])},
    ]:
        np.savez(path, **{**arrays, **change})
        with pytest.raises(gs.FormatError):
            read_certificate(path)


def _refused_or_read(path: Path) -> None:
    with contextlib.suppress(gs.FormatError):
        read_certificate(path)


def test_files_that_claim_too_much_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = _saved(tmp_path)
    monkeypatch.setattr(certificate, "MOST_BYTES", 100)
    with pytest.raises(gs.FormatError, match="limit"):
        read_certificate(path)


# --- independence -----------------------------------------------------------------------------------------------------

TRUSTED = {
    checker: ("graph", "spec", "interop.model_files", "verify.certificate", "verify.checker_", "verify.property"),
    checker_bounds: ("graph", "spec", "verify.checker_operators"),
    checker_operators: ("graph", "spec"),
}


@pytest.mark.parametrize("module", TRUSTED, ids=lambda module: module.__name__)
def test_the_checker_shares_no_code_with_the_prover(module: Any) -> None:
    nodes = ast.walk(ast.parse(inspect.getsource(module)))
    imported = [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    own = [name.removeprefix("gradspec.") for name in imported if name and name.startswith("gradspec.")]
    assert own
    assert all(name.startswith((*TRUSTED[module], "verify.vnnlib")) for name in own)


def test_the_bounds_of_a_leaf_do_not_depend_on_the_leaves_checked_with_it():
    """A cell that bends over one box only is tightened over that box only: tighter is not better for what follows."""
    network, random = CheckedNetwork(_dense(3, 12, 12, 12, 2), "any"), np.random.default_rng(0)
    (x,) = network.graph.inputs
    low = random.uniform(-1, 1, (16, 3))
    high = low + random.choice([0.01, 0.1, 1.0], (16, 1))
    together = network.tighten({x: (low, high)})
    for box in range(len(low)):
        alone = network.tighten({x: (low[box : box + 1], high[box : box + 1])})
        for var, ends in alone.items():
            for end, same in zip(ends, together[var], strict=True):
                np.testing.assert_allclose(end[0], same[box], rtol=1e-12, atol=1e-12)
