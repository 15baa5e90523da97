"""Sums of products by the names of axes, made of matrix products, products cell by cell and sums."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import Operand, Var
from gradspec.graph.types import dtype_of
from gradspec.ops.layout import getitem, transpose, turned
from gradspec.ops.linear import MATMUL, Product
from gradspec.ops.rules import applying
from gradspec.ops.shape import reshape, sum
from gradspec.spec.errors import ShapeError

Labels = tuple[str, ...]
LONGEST = 80
"""Characters of an equation that an error tells."""

_TERM = re.compile(r"[a-zA-Z]*(\.\.\.)?[a-zA-Z]*")


def einsum(equation: str, *tensors: Operand) -> Var:
    """The sum of products that an equation of axes describes, as in NumPy and PyTorch: ``"ij,jk->ik"``.

    A letter names an axis of one size; size 1 broadcasts. Letters after ``->`` are the axes of the result; the others
    are summed over. Without an arrow, the result has the letters that occur once, in alphabetical order. A letter twice
    in one operand is its diagonal. ``...`` stands for axes that broadcast. Operands are multiplied from left to right,
    as a matrix product where two share an axis that is summed over.

    >>> einsum("ij,j->i", np.float32([[1, 2], [3, 4]]), np.float32([1, 10])).tolist()
    [21.0, 43.0]
    >>> einsum("ii", np.float32([[1, 2], [3, 4]])).tolist()
    5.0
    """
    if not isinstance(equation, str):
        raise TypeError(f"einsum needs an equation such as 'ij,jk->ik' first, not a {type(equation).__name__}")
    tensors = operands(*tensors)
    with applying(f"einsum {equation[:LONGEST]!r}", *tensors):
        terms, result = _parsed(equation, [len(t.shape) for t in tensors])
        sizes = _sizes(terms, [t.shape for t in tensors])
    parts = [_Part(*_diagonal(t, labels)).without_ones(sizes) for t, labels in zip(tensors, terms, strict=True)]
    while len(parts) > 1:
        first, second, *rest = parts
        needed = {*result, *(label for part in rest for label in part.labels)}
        parts = [_product(first.summed({*needed, *second.labels}), second.summed({*needed, *first.labels}), needed)]
        parts += rest
    whole = parts[0].summed(result)
    return transpose(whole.tensor, [whole.labels.index(label) for label in result])


# --- the equation -----------------------------------------------------------------------------------------------------


def _parsed(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """The labels of every operand's axes and of the result's; those that ``...`` stands for are numbers."""
    inputs, arrow, output = "".join(equation.split()).partition("->")
    terms = inputs.split(",")
    if not all(map(_TERM.fullmatch, [*terms, output])):
        raise ShapeError("an equation has letters for axes, `...` once for any others, `,` and `->`, and nothing else")
    if len(terms) != len(ranks):
        raise ShapeError(f"the equation is of {len(terms)} operands, and {len(ranks)} are given")
    labels = [_labels(term, rank) for term, rank in zip(terms, ranks, strict=True)]
    others = max((rank - _letters(term) for term, rank in zip(terms, ranks, strict=True) if "..." in term), default=0)
    if not arrow:
        counts = Counter(inputs.replace(",", "").replace(".", ""))
        output = "..." * ("..." in inputs) + "".join(sorted(c for c, count in counts.items() if count == 1))
    result = _labels(output, _letters(output) + (others if "..." in output else 0))
    known = {label for term in labels for label in term}
    if len({*result}) < len(result) or not known.issuperset(result):
        raise ShapeError(f"the result {output!r} must have axes of the operands, each once")
    return labels, result


def _letters(term: str) -> int:
    return len(term.replace(".", ""))


def _labels(term: str, rank: int) -> Labels:
    """Letters, and for the axes of ``...`` their numbers from the last one on, since they broadcast."""
    before, dots, after = term.partition("...")
    others = rank - len(before + after)
    if others < 0 or (others and not dots):
        raise ShapeError(f"{term!r} is of {len(before + after)} axes, and the operand has {rank}")
    return (*before, *map(str, range(others - 1, -1, -1)), *after)


def _sizes(terms: Sequence[Labels], shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for labels, shape in zip(terms, shapes, strict=True):
        for label, n in zip(labels, shape, strict=True):
            known = sizes.setdefault(label, n)
            if n != known and 1 not in (n, known):
                raise ShapeError(f"the axis {label!r} has size {known} in one place and {n} in another")
            sizes[label] = n if known == 1 else known
    return sizes


# --- operands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """A tensor and the labels of its axes, all different."""

    tensor: Var
    labels: Labels

    def size(self, labels: Collection[str]) -> int:
        return prod(n for n, label in zip(self.tensor.shape, self.labels, strict=True) if label in labels)

    def without_ones(self, sizes: dict[str, int]) -> _Part:
        """Without the axes of size 1 that are larger elsewhere: products broadcast over them."""
        pairs = [(n, label) for n, label in zip(self.tensor.shape, self.labels, strict=True) if n == sizes[label]]
        return _Part(reshape(self.tensor, [n for n, _ in pairs]), tuple(label for _, label in pairs))

    def summed(self, needed: Collection[str]) -> _Part:
        """The sum over all axes that nobody needs."""
        axes = tuple(axis for axis, label in enumerate(self.labels) if label not in needed)
        return _Part(sum(self.tensor, axes), tuple(c for c in self.labels if c in needed)) if axes else self

    def matrices(self, lead: Labels, rows: Labels, columns: Labels) -> tuple[Var, bool]:
        """``(*lead, rows, columns)``, or the other way round and True if the axes lie so already."""
        is_turned = self.labels == (*lead, *columns, *rows)
        last = (columns, rows) if is_turned else (rows, columns)
        ordered = transpose(self.tensor, [self.labels.index(label) for part in (lead, *last) for label in part])
        return reshape(ordered, [*ordered.shape[: len(lead)], *map(self.size, last)]), is_turned


def _diagonal(x: Var, labels: Labels) -> tuple[Var, Labels]:
    """Without repeated labels: cells of the two axes ``(n, n)``, laid in a row, are ``n + 1`` apart on the diagonal."""
    for label in labels:
        if labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            rest = [axis for axis in range(len(labels)) if axis not in (first, second)]
            moved = transpose(x, (*rest, first, second))
            n, m = moved.shape[-2:]
            if n != m:
                raise ShapeError(f"einsum: the diagonal {label!r} needs axes of one size, not {n} and {m}")
            row = getitem(reshape(moved, (*moved.shape[:-2], n * n)), (..., slice(None, None, n + 1)))
            return _diagonal(row, (*(labels[axis] for axis in rest), label))
    return x, labels


def _product(a: _Part, b: _Part, needed: Collection[str]) -> _Part:
    """``a`` times ``b``, summed over what both have and nobody needs."""
    lead = tuple(label for label in a.labels if label in b.labels and label in needed)
    inner = tuple(label for label in a.labels if label in b.labels and label not in needed)
    left = tuple(label for label in a.labels if label not in b.labels)
    right = tuple(label for label in b.labels if label not in a.labels)
    (x, x_turned), (y, y_turned) = a.matrices(lead, left, inner), b.matrices(lead, inner, right)
    product = _matrix_product if inner and _has_products(x) else _cell_product
    sizes = dict(zip((*a.labels, *b.labels), (*a.tensor.shape, *b.tensor.shape), strict=True))
    labels = (*lead, *left, *right)
    return _Part(reshape(product(x, y, x_turned, y_turned), [sizes[label] for label in labels]), labels)


def _matrix_product(x: Var, y: Var, x_turned: bool, y_turned: bool) -> Var:
    return apply(MATMUL, Product(x_turned, y_turned), x, y)


def _cell_product(x: Var, y: Var, x_turned: bool, y_turned: bool) -> Var:
    """``(…, left, inner, 1)`` times ``(…, 1, inner, right)``, summed: for small integers, or one product."""
    x, y = turned(x) if x_turned else x, turned(y) if y_turned else y
    cells = reshape(x, (*x.shape, 1)) * reshape(y, (*y.shape[:-2], 1, *y.shape[-2:]))
    return sum(cells, (-2,)) if x.shape[-1] != 1 else reshape(cells, (*x.shape[:-1], y.shape[-1]))


def _has_products(x: Var) -> bool:
    """Whether there are matrix products of such numbers: of floats, and of integers of 32 bits or more."""
    dtype = x.dtype if isinstance(x, Var) else dtype_of(x)
    return dtype.is_float or dtype.numpy.itemsize >= 4
