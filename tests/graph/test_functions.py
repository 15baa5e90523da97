"""Derivatives of functions on arrays and trees of them."""

import numpy as np
import pytest

import gradspec as gs


def energy(x, y):
    return gs.sum(x * x * y)


X, Y = np.array([1.0, 2.0, 3.0]), np.array([0.5, -1.0, 2.0])


def test_jvp_and_vjp_of_trees():
    def function(params, scales):
        return {"total": gs.sum(params["w"] * scales[0]), "parts": (params["b"] * scales[1], params["w"])}

    params, scales = {"w": X, "b": Y}, [Y, X]
    (out, tangent) = gs.jvp(function, (params, scales), ({"w": Y, "b": X}, [X, Y]))
    assert tangent["total"] == pytest.approx((Y * Y + X * X).sum())
    assert np.allclose(tangent["parts"][0], X * X + Y * Y)
    out, pullback = gs.vjp(function, params, scales)
    d_params, d_scales = pullback({"total": 1.0, "parts": (X, np.zeros(3))})
    assert np.array_equal(out["parts"][1], X)
    assert np.array_equal(d_params["w"], Y)
    assert np.array_equal(d_params["b"], X * X)
    assert np.array_equal(d_scales[0], X)
    assert np.array_equal(d_scales[1], X * Y)


@pytest.mark.parametrize("argnums", [0, 1, -1, np.int64(1), (0, 1), [1, 0], (1, 1), (0, -2)])
def test_grad_follows_argnums(argnums):
    expected = {0: 2 * X * Y, 1: X * X}
    value, gradient = gs.value_and_grad(energy, argnums)(X, Y)
    assert value == (X * X * Y).sum()
    wanted = [expected[i % 2] for i in (argnums if isinstance(argnums, tuple | list) else [argnums])]
    for got, right in zip(gradient if isinstance(argnums, tuple | list) else [gradient], wanted, strict=True):
        assert np.array_equal(got, right)


def test_higher_orders_by_nesting():
    def cube(x):
        return gs.sum(x * x * x)

    third = gs.grad(lambda x: gs.sum(gs.grad(lambda y: gs.sum(gs.grad(cube)(y)))(x)))
    assert np.array_equal(gs.grad(cube)(X), 3 * X * X)
    assert np.array_equal(gs.hvp(cube, X, Y), 6 * X * Y)
    assert np.array_equal(third(X), np.full(3, 6.0))


def test_inner_derivatives_see_outer_variables():
    """d/dx of x · d/dy (x·y²) at y = 3 is 12x."""

    def outer(x):
        inner = gs.grad(lambda y: gs.sum(x * y * y))
        return gs.sum(x * inner(np.full(3, 3.0)))

    assert np.array_equal(gs.grad(outer)(X), 12 * X)


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_jacobian(mode):
    def function(x):
        return gs.sum(x * x, axis=0, keepdims=False) * 2.0

    x = np.arange(6.0).reshape(2, 3)
    expected = np.einsum("ij,jk->kij", 4 * x, np.eye(3))
    assert np.array_equal(gs.jacobian(function, mode=mode)(x), expected)


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_jacobian_of_trees(mode):
    def function(params):
        return {
            "outer": params["a"][:, None] * params["b"],
            "n": params["n"],
            "pair": (params["a"], gs.sum(params["b"])),
        }

    params = {"a": X, "b": Y[:2], "n": np.array([1])}
    found = gs.jacobian(function, mode=mode)(params)
    expected = {
        "a": np.einsum("ik,j->ijk", np.eye(3), Y[:2]),
        "b": np.einsum("i,jk->ijk", X, np.eye(2)),
    }
    assert all(np.array_equal(found["outer"][name], block) for name, block in expected.items())
    assert found["outer"]["n"] is None
    assert found["n"] == {"a": None, "b": None, "n": None}
    assert found["pair"][0]["a"].tolist() == np.eye(3).tolist()
    assert found["pair"][0]["b"].tolist() == np.zeros((3, 2)).tolist()
    assert found["pair"][1]["b"].tolist() == [1, 1]


def test_the_pullback_stays_where_it_was_made():
    x = X.copy()
    _, pullback = gs.vjp(lambda x: x * x, x)
    x[:] = 0
    assert np.array_equal(pullback(np.ones(3))[0], 2 * X)


def test_a_variable_does_not_outlive_its_function():
    kept = []
    gs.grad(lambda x: kept.append(x) or gs.sum(x))(X)
    for use in (lambda: kept[0] * 2.0, lambda: gs.relu(kept[0]), lambda: gs.grad(lambda y: gs.sum(y * kept[0]))(X)):
        with pytest.raises(ValueError, match=r"x: f64\[3\] belongs to a graph that is finished"):
            use()


def test_captured_arrays_that_change_are_seen():
    captured = np.ones(3)
    gradient = gs.grad(lambda x: gs.sum(x * captured))
    assert gradient(X).tolist() == [1, 1, 1]
    captured[:] = 5
    assert gradient(X).tolist() == [5, 5, 5]


def test_python_floats_are_arguments():
    assert gs.grad(lambda x: x * x * x)(2.0) == 12.0


def test_unused_arguments_have_zero_gradients():
    assert gs.grad(lambda x, y: gs.sum(x), argnums=1)(X, Y).tolist() == [0, 0, 0]


def test_integer_arguments_pass_through():
    labels = np.array([1, 2])
    out, tangent = gs.jvp(lambda x, n: (x * 2.0, n), (X, labels), (Y, None))
    assert tangent[1] is None
    _, pullback = gs.vjp(lambda x, n: x * 2.0, X, labels)
    assert pullback(Y)[1] is None
    assert np.array_equal(out[1], labels)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: gs.grad(lambda x: x * x)(X), gs.ShapeError, r"one scalar floating-point result, not \[f64\[3\]\]"),
        (lambda: gs.grad(lambda x: x)(np.array(2)), TypeError, "integers, which have no gradient; pass floats"),
        (lambda: gs.grad(energy, 2)(X, Y), TypeError, "argnums=2 names no argument of a call with 2"),
        (
            lambda: gs.grad(lambda x: gs.max_pool1d(x, 3, return_indices=True)[1][0])(X),
            gs.ShapeError,
            r"one scalar floating-point result, not \[i64\[\(\)\]\]",
        ),
        (lambda: gs.jacobian(lambda x: gs.max_pool1d(x, 3, return_indices=True)[1])(X), TypeError, "no derivative"),
        (lambda: gs.jvp(energy, X, Y), TypeError, "primals must be a tuple"),
        (
            lambda: gs.jvp(lambda x: x["a"], ({"a": X},), ({"b": X},)),
            TypeError,
            r"structure \{'b': \*\}, but \{'a': \*\} is needed",
        ),
        (lambda: gs.jvp(lambda x: x, (X,), (np.ones(2),)), gs.ShapeError, r"shape \(2,\)"),
        (
            lambda: gs.trace(lambda x, t: gs.jvp(gs.sum, (x,), (t,))[1], gs.f32[3], gs.f32[1]),
            gs.ShapeError,
            r"t: f32\[1\] was given as a tangent or cotangent; it belongs to f32\[3\]",
        ),
        (
            lambda: gs.trace(lambda x, t: gs.vjp(gs.relu, x)[1](t), gs.f32[3], gs.f64[3]),
            gs.DTypeError,
            r"t: f64\[3\] was given as a tangent or cotangent; it belongs to f32\[3\]",
        ),
        (lambda: gs.jacobian(energy, mode="sideways"), ValueError, "mode='sideways'"),
        (lambda: gs.jvp(lambda x: x, (np.array([1]),), (None,)), TypeError, "every argument is an integer"),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()
