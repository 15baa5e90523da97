"""JAX functions as graphs: values and reverse derivatives are JAX's, for every row of a table; what is refused."""

import warnings

import numpy as np
import pytest

import gradspec as gs

jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402

from gradspec.interop.jax.primitives import RULES  # noqa: E402
from interop.jax_functions import ROWS  # noqa: E402
from interop.quick_jax import QUICK  # noqa: E402


def run(graph, arrays):
    """On the readable backend, which compiles nothing: the graph is what is tested here."""
    result = gs.compile(graph, backend="numpy")(*arrays)
    return list(result) if isinstance(result, tuple) else [result]


def of_floats(values):
    return [v for v in values if v.dtype.kind == "f"]


@pytest.mark.parametrize("name", ROWS)
def test_values_and_cotangents_are_those_of_jax(name):
    function, arguments = ROWS[name]
    random = np.random.default_rng(1)
    with jax.enable_x64(True):
        graph = gs.from_jax(function, *arguments)
        arrays, structure = jax.tree.flatten(arguments)
        moving = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]

        def results(xs):
            given = dict(zip(moving, xs, strict=True))
            filled = [given[i] if i in given else jnp.asarray(a) for i, a in enumerate(arrays)]
            everything = jax.tree.leaves(function(*structure.unflatten(filled)))
            return of_floats(everything), everything

        cotangents = [random.standard_normal(v.shape).astype(v.dtype.numpy) for v in graph.outputs if v.type.is_float]

        def both(xs, cotangents):
            _, pull, everything = jax.vjp(results, xs, has_aux=True)
            return everything, pull(cotangents)[0] if cotangents else []

        compiled = jax.jit(both, compiler_options=QUICK)
        values, pulled = jax.tree.map(np.asarray, compiled([arrays[i] for i in moving], cotangents))
    assert_close(run(graph, arrays), values)
    if cotangents and moving:
        assert_close(run(graph.vjp(), [*arrays, *cotangents])[len(values) :], pulled)


def assert_close(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        rounding = 0 if theirs.dtype.kind != "f" else 1e-12 if theirs.dtype == np.float64 else 1e-6
        np.testing.assert_allclose(ours, theirs, rtol=rounding, atol=rounding)


# --- where derivatives jump -------------------------------------------------------------------------------------------

TIES = np.array([0.0, 6.0, 2.0, 2.0, 0.0, -1.0, 7.0, 7.0])
KINKS = {
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "leaky_relu": jax.nn.leaky_relu,
    "clip": lambda x: jnp.clip(x, 0, 6),
    "clamp": lambda x: jax.lax.clamp(0.0, x, 6.0),
    "bounds that move": lambda x: jax.lax.clamp(x[:4], x[4:], 2 * x[:4]),
    "softplus": lambda x: jax.nn.softplus(x) * jnp.logaddexp(x, x[::-1]),
    "maximum": lambda x: jnp.maximum(x, x[::-1]) * jnp.minimum(x, 2.0),
    "max": lambda x: x.max() * x.min(),
    "max pooling": lambda x: jax.lax.reduce_window(x, -np.inf, jax.lax.max, (3,), (1,), "SAME"),
    "where": lambda x: jnp.where(x > 2, x, 0.5 * x),
}


@pytest.mark.parametrize("name", KINKS)
def test_derivatives_at_ties_are_those_of_jax(name):
    with jax.enable_x64(True):
        value, pull = jax.vjp(KINKS[name], TIES)
        cotangent = np.cos(np.arange(value.size)).reshape(value.shape)
        (expected,) = pull(cotangent)
        graph = gs.from_jax(KINKS[name], TIES)
    assert_close(run(graph.vjp(), [TIES, cotangent]), [np.asarray(value), np.asarray(expected)])


SPECIAL = np.array([-np.inf, -1.0, -0.0, np.nan, 3.0, np.inf])


def test_special_values_are_those_of_jax():
    def function(x):
        activations = jax.nn.relu(x), jax.nn.softplus(x), jax.nn.silu(x), jnp.logaddexp(x, x[::-1]), jnp.logaddexp(x, x)
        functions = jnp.sign(x), jnp.abs(x), jnp.isfinite(x), jnp.exp(x), jnp.cumsum(x), jnp.clip(x, 0, 1), jnp.sort(x)
        return *activations, *functions, x.max(), x.argmax(), jnp.where(x > 0, x, 0)

    with jax.enable_x64(True):
        graph, expected = gs.from_jax(function, SPECIAL), jax.jit(function, compiler_options=QUICK)(SPECIAL)
    assert_close(run(graph, [SPECIAL]), list(map(np.asarray, expected)))


# --- what a graph is like ---------------------------------------------------------------------------------------------


def test_a_network_reads_as_one():
    def network(params, image):
        x = jax.lax.conv_general_dilated(image, params["w"], (1, 1), "SAME")
        x = jax.nn.relu(x + params["b"][:, None, None])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        return x.reshape(1, -1).T

    params = {"w": gs.f32[2, 3, 3, 3], "b": jax.ShapeDtypeStruct((2,), np.float32)}
    text = str(gs.from_jax(jax.jit(network), params, np.zeros((1, 3, 4, 4), np.float32)))
    assert text.splitlines()[0] == "graph(params_b: f32[2], params_w: f32[2, 3, 3, 3], image: f32[1, 3, 4, 4]):"
    assert [line.split(" = ")[1].split("(")[0] for line in text.splitlines()[1:-1]] == [
        *("conv", "reshape", "reshape", "broadcast_to", "add", "relu", "max_pool", "reshape", "transpose")
    ]


RECOGNIZED = {
    "softmax": (jax.nn.softmax, ["softmax"]),
    "softmax of other rows": (lambda x: jax.nn.softmax(x, axis=0), ["softmax"]),
    "log_softmax": (jax.nn.log_softmax, ["log_softmax"]),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, axis=1), ["smooth_max_pool", "reshape"]),
    "var": (jnp.var, ["mean", "reshape", "broadcast_to", "sub", "mul", "mean"]),
    "softplus": (jax.nn.softplus, ["softplus"]),
}


@pytest.mark.parametrize("name", RECOGNIZED)
def test_what_jax_writes_out_is_one_operator(name):
    function, operators = RECOGNIZED[name]
    assert [node.op.name for node in gs.from_jax(function, gs.f32[3, 3]).nodes] == operators


def test_constants_are_computed_where_no_choice_is_left():
    """Places, comparisons and single roundings are; how an exponential is rounded is the kernel's business."""
    graph = gs.from_jax(lambda x: x[jnp.arange(4)[::-1] // 2] * jnp.exp(jnp.linspace(0, 1, 4) > 0.5), gs.f32[2])
    assert [node.op.name for node in graph.nodes if not node.op.is_data_movement] == ["exp", "mul"]


def test_a_scan_is_one_operator():
    def function(x, w):
        return jax.lax.scan(lambda h, r: (jnp.tanh(w @ h + r), h), jnp.zeros(2), jnp.exp(x))[1]

    graph = gs.from_jax(function, gs.f32[3000, 2], gs.f32[2, 2])
    names = [node.op.name for node in graph.nodes if not node.op.is_data_movement]
    assert names == ["exp", "scan"]
    graph.vjp().jvp()


def test_numbers_and_texts_are_part_of_the_function():
    def function(x, times, *, shift, mode):
        return {"up": x * times + shift, "down": x - shift}[mode]

    given = {"shift": gs.f32[()], "mode": "up"}
    graph = gs.from_jax(function, gs.f32[2], 3, example_kwargs=given)
    assert [v.name for v in graph.inputs] == ["x", "shift"]
    assert graph(np.float32([1, 2]), np.float32(10)).tolist() == [13, 16]


def test_constants_are_copied():
    held = np.ones(2, np.float32)
    graph = gs.from_jax(lambda x: x + held, gs.f32[2])
    held[:] = 5
    assert graph(np.zeros(2, np.float32)).tolist() == [1, 1]


@pytest.mark.parametrize("dtype", [gs.f16, gs.bf16, gs.f32], ids=str)
def test_dtypes_are_kept_and_numbers_take_them(dtype):
    graph = gs.from_jax(lambda x: 2 * x.mean(0) + np.pi, dtype[3, 2])
    assert graph.outputs[0].type == dtype[2]


def test_a_rule_for_derivatives_that_a_graph_cannot_hold_is_told():
    @jax.custom_vjp
    def straight_through(x):
        return jnp.round(x)

    straight_through.defvjp(lambda x: (straight_through(x), None), lambda _, g: (g,))
    with pytest.warns(UserWarning, match="straight_through has a derivative rule of its own"):
        gs.from_jax(straight_through, gs.f32[2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gs.from_jax(lambda x: jax.nn.relu(x) + jax.scipy.special.xlogy(x, 2.0), gs.f32[2])


# --- refusals ---------------------------------------------------------------------------------------------------------

REFUSED = {
    "every primitive is told": (lambda x: jax.lax.erf_inv(x) + jnp.fft.fft(x).real, (gs.f32[4],), r"(?s)erf_inv.*fft"),
    "what others are made of": (
        lambda x: jax.lax.cond(x[0] > 0, jnp.sin, jax.lax.erf_inv, x) + jnp.logaddexp(jax.lax.lgamma(x), x),
        (gs.f32[2],),
        r"(?s)2 operators.*erf_inv.*lgamma",
    ),
    "with its place": (lambda x: jnp.linalg.inv(x), (gs.f32[2, 2],), r"lu, once\n    .*test_from_jax.py:\d+"),
    "random numbers": (lambda x: x + jax.random.normal(jax.random.key(0)), (gs.f32[2],), "pass what is drawn"),
    "a key": (lambda k: jax.random.normal(k), (jax.random.key(0),), "and not the key"),
    "float0": (jax.grad(lambda n: 2.0 * n, allow_int=True), (gs.i32[()],), "differentiate by floats"),
    "complex numbers": (lambda x: abs(x * 1j), (gs.f32[2],), "arrays of complex64 are not supported"),
    "bits of truths": (lambda n: jnp.bitwise_or.reduce(n), (gs.i32[2],), "reduce_or, once: it is known for booleans"),
    "a loop that depends on inputs": (
        lambda x: jax.lax.while_loop(lambda c: c < 9, lambda c: c * c, x),
        (gs.f32[()],),
        "how often it runs depends on the inputs",
    ),
    "random numbers within a scan": (
        lambda x: jax.lax.scan(lambda c, r: (c + jax.random.normal(jax.random.key(0)) * r, r), 0.0, x)[0],
        (gs.f32[2],),
        "pass what is drawn",
    ),
    "what is unknown within a scan": (
        lambda x: jax.lax.scan(lambda c, r: (jax.lax.erf_inv(c), r), x[0], x)[0] + 1.0,
        (gs.f32[2],),
        r"erf_inv, once\n    .*test_from_jax.py:\d+",
    ),
    "a long loop": (
        lambda x: jax.lax.fori_loop(0, 2000, lambda i, c: c * x, x),
        (gs.f32[()],),
        "more than 1024; take fewer",
    ),
    "Python": (lambda x: jax.pure_callback(np.sin, x, x), (gs.f32[2],), "it calls Python"),
    "64 bits": (lambda x: x, (np.zeros(2),), "jax_enable_x64"),
    "a tensor of PyTorch": (lambda x: x, (type("Tensor", (), {"shape": (2,), "dtype": "torch"})(),), "give arrays"),
    "no function": (3, (gs.f32[2],), "needs a function"),
    "no result": (lambda x: None, (gs.f32[2],), "needs one to give"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_what_to_do(name):
    function, arguments, text = REFUSED[name]
    with pytest.raises((gs.UnsupportedError, TypeError), match=text):
        gs.from_jax(function, *arguments)


def test_what_another_version_of_jax_states_is_not_passed_over(monkeypatch):
    monkeypatch.setitem(RULES, "exp", lambda x, *, base: x)
    with pytest.raises(gs.UnsupportedError, match=r"exp, once: JAX .* states it otherwise than is known here: .*base"):
        gs.from_jax(jnp.exp, gs.f32[2])


def test_a_function_that_cannot_be_traced_is_told_how():
    with pytest.raises(jax.errors.TracerBoolConversionError) as raised:
        gs.from_jax(lambda x: x if x > 0 else -x, gs.f32[()])
    assert any("jax.make_jaxpr(function)(*arguments) works" in note for note in raised.value.__notes__)
