"""Products of matrices."""

from __future__ import annotations

from typing import Any

from gradspec.graph.builder import apply
from gradspec.graph.ir import Var
from gradspec.interop.onnx.node import Handler, OnnxNode
from gradspec.ops.einsum import einsum
from gradspec.ops.linear import MATMUL, Product, matmul
from gradspec.ops.pointwise import scale
from gradspec.ops.shape import broadcast_to, reshape


def _scaled(x: Any, factor: float) -> Any:
    return x if factor == 1 else scale(x, factor)


def _gemm(node: OnnxNode) -> Any:
    """``alpha · A·B + beta · C``. A C with one number per column joins the product, so that they are rounded once."""
    a, b, c = node.variable(0), node.variable(1), node.optional(2)
    product, alpha = Product(node.flag("transA"), node.flag("transB")), node.attribute("alpha")
    columns = b.shape[-2 if product.transpose_b else -1] if b.ndim == 2 else 0
    if c is not None and alpha == 1 and _is_row(c, columns):
        return apply(MATMUL, product, a, b, _scaled(reshape(c, (columns,)), node.attribute("beta")))
    y = _scaled(apply(MATMUL, product, a, b), alpha)
    return y if c is None else y + broadcast_to(_scaled(c, node.attribute("beta")), y.shape)


def _is_row(c: Var, columns: int) -> bool:
    return c.shape in ((columns,), (1, columns))


def _matmul(node: OnnxNode) -> Any:
    return matmul(node.variable(0), node.variable(1))


def _einsum(node: OnnxNode) -> Any:
    return einsum(node.attribute("equation"), *node.variables())


HANDLERS: dict[str, Handler] = {"Einsum": _einsum, "Gemm": _gemm, "MatMul": _matmul}
