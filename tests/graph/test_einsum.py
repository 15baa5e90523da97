"""Sums of products by the names of axes: NumPy's values, derivatives that follow, mistakes explained."""

import numpy as np
import pytest

import gradspec as gs

EQUATIONS = {
    "ij,jk->ik": [(2, 3), (3, 4)],
    "ij,kj->ik": [(2, 3), (4, 3)],
    "ji,jk": [(3, 2), (3, 4)],
    "bij,bjk->bik": [(2, 2, 3), (2, 3, 4)],
    "bhid,bhjd->bhij": [(2, 2, 3, 4), (2, 2, 5, 4)],
    "bhcn,bhcm->hbmn": [(2, 3, 4, 2), (2, 3, 4, 3)],
    "i,j->ij": [(2,), (3,)],
    "i,i": [(3,), (3,)],
    "i,i->i": [(3,), (3,)],
    "ij->ji": [(2, 3)],
    "ij->": [(2, 3)],
    "ijk->k": [(2, 3, 4)],
    ",ij->ij": [(), (2, 3)],
    "->": [()],
    "ii": [(3, 3)],
    "ii->i": [(3, 3)],
    "iji,j->i": [(2, 3, 2), (3,)],
    "iiij->j": [(2, 2, 2, 3)],
    "kikj,jj->ik": [(2, 3, 2, 4), (4, 4)],
    "...ij,...jk->...ik": [(5, 2, 3), (4, 1, 3, 2)],
    "...ij,jk": [(2, 2, 3), (3, 4)],
    "i...->...": [(2, 3, 4)],
    "b...,b->...b": [(2, 3, 4), (2,)],
    "...,...": [(2, 3), (3,)],
    "ij,jk,kl->il": [(2, 3), (3, 4), (4, 2)],
    "ab,b,ca->c": [(2, 3), (3,), (4, 2)],
    "ij,ij,ij->j": [(2, 3), (2, 3), (2, 3)],
    "ij,jk,ik->": [(2, 3), (3, 2), (2, 2)],
    "ij,jk->ijk": [(1, 3), (3, 1)],
    "ij,ij->i": [(2, 1), (2, 3)],
    "ij,jk->ik ": [(2, 0), (0, 3)],
    " Z a , a b -> Z b": [(0, 2), (2, 3)],
}


def operands(shapes, dtype, seed=0):
    random = np.random.default_rng(seed)
    return [random.integers(-4, 5, shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", [np.float64, np.int32])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_the_value_is_that_of_numpy(equation, dtype):
    arrays = operands(EQUATIONS[equation], dtype)
    expected = np.einsum(equation, *arrays)
    found = gs.einsum(equation, *arrays)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(found, expected)


def test_the_derivative_is_einsum_again():
    x, y = operands([(2, 3), (4, 3)], np.float64)
    (dx, dy), g = operands([(2, 3), (4, 3)], np.float64, 1), operands([(4, 2)], np.float64, 2)[0]
    graph = gs.trace(lambda x, y: gs.einsum("ij,kj->ki", x, y), gs.f64[2, 3], gs.f64[4, 3])
    assert [node.op.name for node in graph.nodes].count("matmul") == 1
    np.testing.assert_array_equal(graph.jvp()(x, y, dx, dy)[1], (dx @ y.T + x @ dy.T).T)
    pulled = graph.vjp()(x, y, g)[1:]
    np.testing.assert_array_equal(pulled[0], g.T @ y)
    np.testing.assert_array_equal(pulled[1], g @ x)


@pytest.mark.parametrize(
    ("equation", "shapes", "said"),
    [
        ("ij,jk", [(2, 3)], "the equation is of 2 operands, and 1 are given"),
        ("ij", [(2, 3, 4)], "'ij' is of 2 axes, and the operand has 3"),
        ("...ijk", [(2, 3)], "'...ijk' is of 3 axes, and the operand has 2"),
        ("ij,jk", [(2, 3), (4, 5)], "the axis 'j' has size 3 in one place and 4 in another"),
        ("ii", [(2, 3)], "the axis 'i' has size 2 in one place and 3 in another"),
        ("ii", [(1, 3)], "the diagonal 'i' needs axes of one size, not 1 and 3"),
        ("ij->k", [(2, 3)], "the result 'k' must have axes of the operands, each once"),
        ("ij->ii", [(2, 3)], "the result 'ii' must have axes of the operands, each once"),
        ("i->...i", [(2,)], None),
        ("i.j", [(2, 3)], "letters for axes"),
        ("i->j->k", [(2,)], "letters for axes"),
        ("......i", [(2,)], "letters for axes"),
    ],
)
def test_mistakes_are_explained(equation, shapes, said):
    arrays = operands(shapes, np.float32)
    if said is None:
        assert gs.einsum(equation, *arrays).shape == np.einsum(equation, *arrays).shape
        return
    with pytest.raises(gs.ShapeError, match=said.replace("...", r"\.\.\.")):
        gs.einsum(equation, *arrays)


def test_the_equation_comes_first():
    with pytest.raises(TypeError, match="needs an equation such as 'ij,jk->ik' first, not a ndarray"):
        gs.einsum(np.ones(2), "i")


@pytest.mark.parametrize(
    ("dtype", "operators"), [(np.int32, {"matmul"}), (np.int64, {"matmul"}), (np.int8, {"mul", "sum"})]
)
def test_integers_are_multiplied_as_matrices_where_there_are_such_products(dtype, operators):
    of = {np.int32: gs.i32, np.int64: gs.i64, np.int8: gs.i8}[dtype]
    graph = gs.trace(lambda a, b: gs.einsum("ij,jk->ik", a, b), of[2, 3], of[3, 4])
    assert operators <= {node.op.name for node in graph.nodes}
