"""What a proof consists of, so that it can be checked by others: kept while it is searched, saved, and read.

A certificate names the network and the property by digests, and has for each case of the property one of two trees.

- **Boxes of inputs**: at every inner node an axis of the flat input and a cut, ``x ≤ cut`` first, then ``x ≥ cut``.
- **Signs of inner variables**, a tree for each conjunction: at every inner node a bent operator and a cell of its
  operand, ``z ≤ 0`` first, then ``z ≥ 0``. Leaves say which sum of its rows refutes it, by which slopes and
  multipliers.

Trees are written in preorder, so that any of them covers what it divides. Bounds are not written: a checker must find
them anyway. The file is an .npz archive: a header in JSON, and one array for each field, all cases one after the other.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from gradspec.graph.builder import needed
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Node
from gradspec.interop.array_files import stored_arrays, write_arrays
from gradspec.saving.graphs import fields_to_json
from gradspec.saving.strict_json import brief, require_keys, strict_json
from gradspec.spec.errors import FormatError
from gradspec.verify.property import Property

VERSION = 2
MOST_BYTES = 2**28
"""Of all arrays of one certificate; a proof that needs more has none, and a file that claims more is not read."""

HEADER = ("version", "kernels", "network", "property", "kinds", "lengths")
LEAF = -1
"""In the place of an axis or of an operator: the tree ends here."""


# --- records ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class InputTree:
    """Boxes of inputs, in preorder; the cut of a leaf means nothing."""

    axis: Array
    cut: Array


@dataclass(frozen=True, eq=False)
class SignTree:
    """Signs of inner variables. Operators are counted among the nodes that the outputs need, from 0.

    ``first`` has for each conjunction the row that refutes it everywhere by the usual slopes, or −1: each of those that
    are left has a tree, one behind the other, and is refuted at each leaf of it by a sum of its rows: ``weights`` has a
    number for each of them, which is not negative. The numbers of
    a leaf follow those of the leaf before; ``share_counts[leaf, k]`` cells of operator ``shared[k]`` have slopes of
    their own, in ``share_cells`` and ``shares``. The same is said of multipliers, by operator ``multiplied[k]``.

    Before that, bounds of operands of ``refined`` operators, in their order, become tighter: by a row for cell
    ``abs(refined_rows) − 1``, of its lower end, or of its upper one if the number is negative. Slopes of a row are
    written as those of a leaf are.
    """

    first: Array
    node: Array
    cell: Array
    weights: Array
    shared: Array
    share_counts: Array
    share_cells: Array
    shares: Array
    multiplied: Array
    multiplier_counts: Array
    multiplier_cells: Array
    multipliers: Array
    refined: Array
    refined_rows: Array
    refined_share_counts: Array
    refined_share_cells: Array
    refined_shares: Array


KINDS: dict[str, Any] = {"inputs": InputTree, "signs": SignTree}
FLOATS = {"cut": np.float64, "weights": np.float32, "shares": np.float32, "multipliers": np.float32}
FLOATS["refined_shares"] = np.float32
"""The fields that hold no integers of 32 bits."""


@dataclass(frozen=True, eq=False)
class Certificate:
    """A proof of a property of a network, case by case, for ``kernels`` "any" or "real"."""

    kernels: str
    network: str
    property: str
    cases: tuple[InputTree | SignTree, ...] = field(repr=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the certificate to a file that ``gs.verify.check`` reads."""
        write_arrays(_named_npz(path), _arrays(self))


def _named_npz(path: str | os.PathLike[str]) -> str:
    name = os.fspath(path)
    if name.lower().endswith(".npy"):
        raise ValueError(f"{name}: a certificate is no single array; give it another name")
    return name


def _fields(kind: str) -> list[str]:
    return list(KINDS[kind].__dataclass_fields__)


ALL_FIELDS = tuple(f"{kind}_{name}" for kind in KINDS for name in _fields(kind))


def _dtype(name: str) -> Any:
    return np.dtype(FLOATS.get(name, np.int32))


# --- files ------------------------------------------------------------------------------------------------------------


def _arrays(certificate: Certificate) -> dict[str, Array]:
    kinds = ["inputs" if isinstance(case, InputTree) else "signs" for case in certificate.cases]
    lengths: dict[str, list[Any]] = {name: [] for name in ALL_FIELDS}
    arrays: dict[str, list[Array]] = {name: [] for name in ALL_FIELDS}
    for kind, case in zip(kinds, certificate.cases, strict=True):
        for name in _fields(kind):
            array = np.asarray(getattr(case, name), _dtype(name))
            lengths[f"{kind}_{name}"].append(list(array.shape))
            arrays[f"{kind}_{name}"].append(array.reshape(-1))
    header = {
        "version": VERSION,
        "kernels": certificate.kernels,
        "network": certificate.network,
        "property": certificate.property,
        "kinds": kinds,
        "lengths": lengths,
    }
    found = {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)}
    for name, parts in arrays.items():
        found[name] = np.concatenate([np.zeros(0, _dtype(_bare(name))), *parts])
    return found


def _bare(name: str) -> str:
    return name.split("_", 1)[1]


def read_certificate(path: str | os.PathLike[str]) -> Certificate:
    """The certificate that a file holds; whatever is wrong with the file is a FormatError."""
    name = os.fspath(path)
    stored = stored_arrays(name)
    if not isinstance(stored, dict) or set(stored) != {"header", *ALL_FIELDS}:
        raise FormatError(f"{name} holds other arrays than a certificate does")
    if sum(array.nbytes for array in stored.values()) > MOST_BYTES:
        raise FormatError(f"{name} holds more than {MOST_BYTES} bytes, which is the limit")
    for key, array in stored.items():
        expected = np.dtype(np.uint8) if key == "header" else _dtype(_bare(key))
        if array.dtype != expected or len(array.shape) != 1:
            raise FormatError(f"{array.place} is {array.dtype} of shape {array.shape}, not a vector of {expected}")
    arrays = {key: array.load() for key, array in stored.items()}
    try:
        text = arrays.pop("header").tobytes().decode()
    except UnicodeDecodeError:
        raise FormatError(f"{name}: its header is not UTF-8") from None
    return _certificate(strict_json(text, f"the header of {name}"), arrays, name)


def _certificate(header: Any, arrays: Mapping[str, Array], name: str) -> Certificate:
    require_keys(header, HEADER, f"the header of {name}")
    if header["version"] != VERSION or type(header["version"]) is not int:
        raise FormatError(f"{name}: version {brief(header['version'])} is unknown; version {VERSION} is read")
    kernels, network, property = (header[key] for key in ("kernels", "network", "property"))
    if not isinstance(network, str) or not isinstance(property, str) or kernels not in ("any", "real"):
        raise FormatError(f"{name}: kernels and digests are not the texts that they should be")
    kinds = header["kinds"]
    if not isinstance(kinds, list) or any(kind not in ("inputs", "signs") for kind in kinds):
        raise FormatError(f"{name}: the kinds of its cases are not all known")
    require_keys(header["lengths"], ALL_FIELDS, f"the lengths in {name}")
    parts = {key: _cut(array, header["lengths"][key], f"{key} in {name}") for key, array in arrays.items()}
    if any(len(parts[f"{kind}_{f}"]) != kinds.count(kind) for kind in KINDS for f in _fields(kind)):
        raise FormatError(f"{name} does not have an array of each field for each of its cases")
    taken = {key: iter(found) for key, found in parts.items()}
    cases = tuple(KINDS[kind](*(next(taken[f"{kind}_{f}"]) for f in _fields(kind))) for kind in kinds)
    return Certificate(kernels, network, property, cases)


def _cut(array: Array, shapes: object, where: str) -> list[Array]:
    """The arrays of the cases, which must fill the whole."""
    if not isinstance(shapes, list) or not all(_is_shape(shape) for shape in shapes):
        raise FormatError(f"{where}: expected a list of shapes")
    if sum(prod(shape) for shape in shapes) != array.size:
        raise FormatError(f"{where}: the shapes do not fill {array.size} numbers")
    found, begun = [], 0
    for shape in shapes:
        found.append(array[begun : begun + prod(shape)].reshape(shape))
        begun += prod(shape)
    return found


def _is_shape(shape: object) -> bool:
    return isinstance(shape, list) and len(shape) in (1, 2) and all(type(n) is int and 0 <= n < 2**31 for n in shape)


# --- digests ----------------------------------------------------------------------------------------------------------


def network_digest(graph: Graph) -> str:
    """A number of what the graph computes: operators, attributes, types and constants; not what variables are called.

    >>> import gradspec as gs
    >>> one, two = gs.trace(lambda x: gs.relu(x), gs.f32[2]), gs.trace(lambda y: gs.relu(y), gs.f32[2])
    >>> network_digest(one) == network_digest(two) != network_digest(gs.trace(gs.abs, gs.f32[2]))
    True
    """
    nodes, _ = needed(graph.nodes, graph.outputs)
    numbers = {v: i for i, v in enumerate(graph.inputs)}
    digest = hashlib.sha256()

    def tell(*what: object) -> None:
        digest.update(json.dumps(what).encode() + b"\n")

    def number(var: Any) -> int:
        if var not in numbers:
            numbers[var] = len(numbers)
            array = np.ascontiguousarray(graph.constants[var])
            tell("constant", str(var.type))
            digest.update(array.tobytes())
        return numbers[var]

    tell(VERSION, *(str(v.type) for v in graph.inputs))
    for node in nodes:
        operands = [number(v) for v in node.inputs]
        numbers.update({v: len(numbers) + i for i, v in enumerate(node.outputs)})
        tell(node.op.name, fields_to_json(node.attrs), operands, [str(v.type) for v in node.outputs])
    tell("outputs", [number(v) for v in graph.outputs])
    return digest.hexdigest()


def property_digest(property: Property) -> str:
    """A number of what the property says, exactly; not of names."""
    digest = hashlib.sha256()

    def tell(*what: object) -> None:
        digest.update(json.dumps(what, default=lambda n: f"{n.numerator}/{n.denominator}").encode() + b"\n")

    tell(VERSION, sum(p.size for p in property.inputs), sum(p.size for p in property.outputs))
    for case in property.cases:
        tell("box", case.box.lower, case.box.upper)
        for conjunction in case.unsafe:
            tell("unsafe", [(row.outputs, row.inputs, row.bound, row.strict) for row in conjunction.inequalities])
    return digest.hexdigest()


# --- while a proof is searched ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Leaf:
    """The weights of the sum that is proved, and for each operator the cells with numbers of their own, and these."""

    weights: Array
    shares: Sequence[tuple[Array, Array]]
    multipliers: Sequence[tuple[Array, Array]]

    @property
    def nbytes(self) -> int:
        pairs = (*self.shares, *self.multipliers, (self.weights,))
        return sum(array.nbytes for pair in pairs for array in pair) + 256


@dataclass(frozen=True, eq=False)
class RefinedRow:
    """A bound of an operand that slopes of its own make tighter; ``row`` as ``SignTree`` has it."""

    operator: int
    row: int
    shares: Sequence[tuple[Array, Array]]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for pair in self.shares for array in pair) + 64


def sparse(array: Array, where: Array) -> tuple[Array, Array]:
    """The cells where something is, and the numbers there."""
    cells = np.flatnonzero(where)
    return cells.astype(np.int32), array.reshape(-1)[cells].astype(np.float32)


class Tree:
    """A tree that grows at its leaves: how each inner node is cut, and what was found at each leaf."""

    def __init__(self) -> None:
        self._children: list[int] = [0]
        self._cuts: list[tuple[Any, ...] | None] = [None]
        self.leaves: dict[int, Leaf] = {}
        """What was found at leaves; nothing any more if it takes too much memory."""
        self.nbytes = 0

    def end(self, node: int, found: Leaf) -> None:
        """What was found at a leaf."""
        self.nbytes += found.nbytes
        if self.nbytes < MOST_BYTES // 2:
            self.leaves[node] = found
        else:
            self.leaves.clear()

    def split(self, node: int, *cut: object) -> tuple[int, int]:
        """The two parts of a leaf, which is cut."""
        first = len(self._cuts)
        self._children[node], self._cuts[node] = first, cut
        self._children += [0, 0]
        self._cuts += [None, None]
        return first, first + 1

    def preorder(self) -> Iterator[tuple[int, tuple[Any, ...] | None]]:
        """Every node, before its parts, and how it is cut; None for a leaf."""
        stack = [0]
        while stack:
            node = stack.pop()
            yield node, self._cuts[node]
            if self._cuts[node] is not None:
                stack += [self._children[node] + 1, self._children[node]]

    def cuts(self) -> list[tuple[Any, ...]]:
        """All cuts in preorder; ``LEAF`` and 0 for leaves."""
        return [(LEAF, 0) if cut is None else cut for _, cut in self.preorder()]


def _columns(trees: Sequence[Tree]) -> tuple[Array, Array]:
    """Both parts of all cuts, one tree behind the other."""
    cuts = [cut for tree in trees for cut in tree.cuts()]
    return np.array([first for first, _ in cuts], np.int32), np.array([second for _, second in cuts])


def input_tree(tree: Tree) -> InputTree:
    axis, cut = _columns([tree])
    return InputTree(axis, cut.astype(np.float64))


def sign_tree(
    first: Sequence[int],
    trees: Sequence[Tree],
    shared: Sequence[int] = (),
    multiplied: Sequence[int] = (),
    refined: Sequence[RefinedRow] = (),
) -> SignTree | None:
    """The record of a tree for each conjunction that is left, with a ``Leaf`` at each leaf; None if it is too large."""
    if sum(t.nbytes for t in trees) + sum(row.nbytes for row in refined) > MOST_BYTES // 2:
        return None
    node, cell = _columns(trees)
    leaves = [tree.leaves[number] for tree in trees for number, cut in tree.preorder() if cut is None]

    def written(pairs: Sequence[Sequence[tuple[Array, Array]]], count: int) -> tuple[Array, Array, Array]:
        counts = np.array([[len(cells) for cells, _ in of] for of in pairs], np.int32).reshape(len(pairs), count)
        cells = np.concatenate([np.zeros(0), *(cells for of in pairs for cells, _ in of)])
        numbers = np.concatenate([np.zeros(0), *(numbers for of in pairs for _, numbers in of)])
        return counts, cells.astype(np.int32), numbers.astype(np.float32)

    return SignTree(
        np.array(first, np.int32),
        node,
        cell.astype(np.int32),
        np.concatenate([np.zeros(0), *(leaf.weights for leaf in leaves)]).astype(np.float32),
        np.array(shared, np.int32),
        *written([leaf.shares for leaf in leaves], len(shared)),
        np.array(multiplied, np.int32),
        *written([leaf.multipliers for leaf in leaves], len(multiplied)),
        np.array([found.operator for found in refined], np.int32),
        np.array([found.row for found in refined], np.int32),
        *written([found.shares for found in refined], len(shared)),
    )


def node_numbers(graph: Graph, nodes: Sequence[Node]) -> list[int]:
    """Where nodes are among those that the outputs need, by which a certificate knows them."""
    kept, _ = needed(graph.nodes, graph.outputs)
    places = {node: i for i, node in enumerate(kept)}
    return [places[node] for node in nodes]
