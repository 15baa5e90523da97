"""Rows of matrix products and batch normalisation."""

import gradspec as gs
from gradspec.graph.builder import apply
from gradspec.ops.linear import MATMUL, Product
from graph.op_cases import GraphCase


def product(id, a, b):
    return GraphCase(f"matmul {id}", lambda a, b: a @ b, (a, b), "tied")


def transposed(id, a, b, bias, **flags):
    """What derivatives of products make of them, with a bias for each matrix of the stack."""
    attrs = Product(**flags)
    return GraphCase(f"matmul {id}", lambda a, b, c: apply(MATMUL, attrs, a, b, c), (a, b, bias), "tied")


def batch_norm(id, x, *names, eps=1e-3):
    """``positive`` data keeps the variance where its root lives."""
    shapes = (x, *((x[1],),) * (2 + len(names)))
    return GraphCase(
        f"batch_norm {id}",
        lambda x, mean, var, *rest: gs.batch_norm(x, mean, var, **dict(zip(names, rest, strict=True)), eps=eps),
        shapes,
        "positive",
        irrational=True,
    )


ROWS = [
    product("matrices", (2, 3), (3, 2)),
    product("inner product", (3,), (3,)),
    product("row", (3,), (3, 2)),
    product("column", (2, 3), (3,)),
    product("stack by matrix", (2, 1, 2, 3), (3, 2)),
    product("matrix by stack", (2, 3), (2, 3, 1)),
    product("stacks broadcast", (2, 1, 1, 2), (3, 2, 2)),
    product("stack by vector", (2, 2, 3), (3,)),
    product("vector by stack", (3,), (2, 3, 2)),
    product("nothing to sum", (2, 0), (0, 3)),
    product("no rows", (0, 2), (2, 2)),
    transposed("left transposed", (3, 2), (3, 4), (4,), transpose_a=True),
    transposed("right transposed", (2, 2, 3), (2, 4, 3), (2, 4), transpose_b=True),
    transposed("both transposed", (3, 2), (1, 3), (1,), transpose_a=True, transpose_b=True),
    GraphCase("matmul with itself", lambda a: a @ a, ((2, 2),), "tied"),
    GraphCase("linear", lambda x, w: gs.linear(x, w), ((2, 3), (2, 3)), "tied"),
    GraphCase("linear bias", lambda x, w, b: gs.linear(x, w, b), ((2, 2, 3), (2, 3), (2,)), "tied"),
    GraphCase("linear of a vector", lambda x, w, b: gs.linear(x, w, b), ((3,), (2, 3), (2,)), "tied"),
    batch_norm("statistics only", (2, 2)),
    batch_norm("affine", (2, 2, 2), "weight", "bias"),
    batch_norm("weight only", (1, 3), "weight", eps=0.5),
    batch_norm("bias only", (2, 1, 1, 2), "bias"),
]
