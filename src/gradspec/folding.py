"""Batch normalisation folded into the product before it, for those who ask.

With ``s = weight / √(var + eps)`` for each channel, ``norm(W·x + b) = (s·W)·x + (s·(b − mean) + bias)``: the same
product with other constants. That is so for real numbers; floats are rounded elsewhere, so no transformation does it by
itself. This one knows operators by name, and is therefore not among the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from gradspec.graph.family import require_graph
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Node, Var
from gradspec.ops.conv import READ, WRITE
from gradspec.ops.linear import BATCH_NORM, MATMUL
from gradspec.transforms.copy import Copier


def fold_batch_norm(graph: Graph) -> Graph:
    """The graph with batch norms folded into the convolutions and matrix products before them.

    A ``batch_norm`` is folded if all its operands except the first are constants, and the first comes from a
    convolution, transposed convolution or matrix product (``linear``) with constant weight and bias, and is read by
    nothing else. New weights and biases are computed in float64 and rounded to the dtype of the old ones; a product for
    which they would not be finite is left alone, and so is everything else.

    >>> w, ones = np.ones((4, 3, 3, 3), np.float32), np.ones(4, np.float32)
    >>> def layer(x):
    ...     return gs.relu(gs.batch_norm(gs.conv2d(x, w), 2 * ones, 4 * ones, eps=0.0))
    >>> print(fold_batch_norm(gs.trace(layer, gs.f32[1, 3, 8, 8])))
    graph(x: f32[1, 3, 8, 8]):
      c    : f32[4, 3, 3, 3] = constant all 0.5
      bias : f32[4]          = constant [-1.0, -1.0, -1.0, -1.0]
      conv : f32[1, 4, 6, 6] = conv(x, c, bias, kernel=(3, 3))
      relu : f32[1, 4, 6, 6] = relu(conv)
      return relu
    """
    require_graph("fold_batch_norm", graph)
    copy, norms = Copier(graph), _norms(graph)
    for node in graph.nodes:
        norm = norms.get(node.outputs[0])
        folded = None if norm is None else _folded(node, norm, graph.constants)
        if norm is not None and folded is not None:
            weight, bias = (copy.builder.share(*constant) for constant in folded)
            copy.assign(norm, copy.builder.apply(node.op, node.attrs, copy(node.inputs[0]), weight, bias))
        elif node.outputs[0] not in copy.vars:
            copy.node(node)
    return copy.builder.build(copy.all(graph.outputs), allow_unused=True)


def _norms(graph: Graph) -> dict[Var, Node]:
    """The batch norm of every variable that nothing else reads."""
    reads = Counter([*(v for node in graph.nodes for v in node.inputs), *graph.outputs])
    return {node.inputs[0]: node for node in graph.nodes if node.op is BATCH_NORM and reads[node.inputs[0]] == 1}


def _folded(product: Node, norm: Node, constants: Mapping[Var, Array]) -> list[tuple[Array, str]] | None:
    """Weight and bias of the product that does the work of both, with their names; None: they are left alone."""
    spread = SPREADS.get(product.op.name)
    if spread is None or not constants.keys() >= {*product.inputs[1:], *norm.inputs[1:]}:
        return None
    weight, *bias = (constants[v].astype(np.float64) for v in product.inputs[1:])
    with np.errstate(all="ignore"):
        scale, shift = _scale_and_shift(norm, bias[0] if bias else 0.0, constants)
        along = spread(product, scale)
        if along is None:
            return None
        found = [array.astype(product.outputs[0].dtype.numpy) for array in (weight * along, shift)]
    names = *(v.name for v in product.inputs[1:]), "bias"
    return list(zip(found, names, strict=False)) if all(np.isfinite(array).all() for array in found) else None


def _scale_and_shift(norm: Node, bias: Array | float, constants: Mapping[Var, Array]) -> tuple[Array, Array]:
    """For each channel, the factor of what comes before the norm, and what is added to the product in the end."""
    mean, var, *affine = (constants[v].astype(np.float64) for v in norm.inputs[1:])
    scale = (affine[0] if norm.attrs.weight else 1.0) / np.sqrt(var + norm.attrs.eps)
    return scale, (bias - mean) * scale + (affine[-1] if norm.attrs.bias else 0.0)


# --- one number for each channel, laid along the weight; None if the norm's axis 1 is not the axis of the channels ----


def _along_conv(node: Node, scale: Array) -> Array | None:
    if node.outputs[0].ndim != node.attrs.rank + 2:
        return None
    return scale.reshape(-1, *(1,) * (node.attrs.rank + 1))


def _along_conv_transpose(node: Node, scale: Array) -> Array | None:
    """Every group has rows of its own in the weight, and its channels are their columns."""
    if node.outputs[0].ndim != node.attrs.rank + 2:
        return None
    groups, rows = node.attrs.groups, node.inputs[1].shape[0]
    matrix = np.repeat(scale.reshape(groups, -1), rows // groups, axis=0)
    return matrix.reshape(*matrix.shape, *(1,) * node.attrs.rank)


def _along_matmul(node: Node, scale: Array) -> Array | None:
    if node.outputs[0].ndim != 2:
        return None
    return scale[:, None] if node.attrs.transpose_b else scale


SPREADS: dict[str, Callable[[Node, Array], Array | None]] = {
    READ.name: _along_conv,
    WRITE.name: _along_conv_transpose,
    MATMUL.name: _along_matmul,
}
