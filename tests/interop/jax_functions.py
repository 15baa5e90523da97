"""Functions of JAX with arguments for them: what ordinary layers consist of, and every form of what is general."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax, nn
from jax import numpy as jnp


class Row(NamedTuple):
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


def drawn(*shape: int, seed: int = 0) -> Any:
    """Numbers without ties, of both signs."""
    cells = np.random.default_rng(seed).permutation(np.linspace(-2.3, 2.1, int(np.prod(shape))))
    return cells.reshape(shape)


def positive(*shape: int) -> Any:
    return np.abs(drawn(*shape)) + 0.1


X, Y, ROW, CUBE = drawn(3, 4), drawn(3, 4, seed=1), drawn(4), drawn(2, 3, 4)
IMAGE, FILTER = drawn(2, 4, 6, 5), drawn(6, 2, 3, 2)
PLACES = np.array([[2, 0], [1, 1]])
MASK = X > Y


def pointwise(function: Callable[[Any], Any], x: Any = X) -> Row:
    return Row(function, (x,))


def convolved(numbers: tuple[str, str, str], x: Any = IMAGE, w: Any = FILTER, **settings: Any) -> Row:
    """A convolution with the axes of NCHW arrays in another order."""
    given = {"window_strides": (1, 1), "padding": "VALID", **settings}
    order = [["NCHW", "OIHW"][i] for i in range(2)]
    x, w = (v.transpose([o.index(c) for c in n]) for v, n, o in zip((x, w), numbers, order, strict=False))
    return Row(lambda x, w: lax.conv_general_dilated(x, w, dimension_numbers=numbers, **given), (x, w))


def pooled(init: Any, function: Any, window: Any, strides: Any, padding: Any, **dilations: Any) -> Row:
    def reduced(x: Any) -> Any:
        """JAX has no reverse derivative of dilated windows."""
        given = lax.stop_gradient(x) if "window_dilation" in dilations else x
        return lax.reduce_window(given, init, function, window, strides, padding, **dilations)

    return Row(reduced, (IMAGE,))


NCHW = ("NCHW", "OIHW", "NCHW")


def conv_row(**settings: Any) -> Row:
    return convolved(NCHW, feature_group_count=2, **settings)


@jax.jit
def block(params: Any, x: Any) -> Any:
    """A layer of a transformer: attention and a perceptron, each after a normalisation."""

    def normalized(x: Any, scale: Any) -> Any:
        return scale * (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    heads = jnp.einsum("td,dhk->thk", normalized(x, params["scale"][0]), params["qkv"]).reshape(3, 3, 2, 4)
    scores = jnp.einsum("thk,shk->hts", heads[0], heads[1]) / 2
    masked = jnp.where(jnp.tril(jnp.ones((3, 3), bool)), scores, -1e9)
    y = x + jnp.einsum("hts,shk->thk", nn.softmax(masked), heads[2]).reshape(3, 8)
    return y + nn.gelu(normalized(y, params["scale"][1]) @ params["in"]) @ params["out"]


def softmaxes_by_hand(x: Any) -> Any:
    e = jnp.exp(x - x.max(0, keepdims=True))
    z = x - lax.stop_gradient(x.max(1))[:, None]
    s = lax.stop_gradient(x[0])
    shares, logs = e / e.sum(0, keepdims=True), z - jnp.log(jnp.exp(z).sum(1, keepdims=True))
    return shares, logs, jnp.log(jnp.exp(x - s).sum(0)) + s, x.sum((0, 1)) / 9


def no_softmaxes(x: Any) -> Any:
    """What has the parts of a softmax or a mean, and is none: other sums, other rows, other shifts."""
    e, s = jnp.exp(x), x[0]
    logs = jnp.log(e.sum(1))
    shares = e / e.sum(0)[:, None], e / e.sum(), e / jnp.exp(2 * x).sum(1, keepdims=True), e[::-1] / e.sum(0)
    rest = x - logs, x.T - logs[:, None], jnp.log(jnp.exp(x - s).sum(0)) + 2 * s, jnp.log(jnp.exp(x - s).sum(0)) + s
    other = jnp.exp(x - x.max(0))
    shifted = other / other.sum(1, keepdims=True), jnp.log(jnp.exp(x - s).sum(1)) + s
    return *shares, *rest, *shifted, x.sum(0) / 9, x.sum() / 3


PARAMS = {"scale": drawn(2, 8), "qkv": drawn(8, 6, 4), "in": drawn(8, 5), "out": drawn(5, 8)}

ROWS: dict[str, Row] = {
    "relu": pointwise(nn.relu),
    "relu6": pointwise(lambda x: nn.relu6(3 * x)),
    "leaky_relu": pointwise(nn.leaky_relu),
    "elu, celu, selu": pointwise(lambda x: (nn.elu(x), nn.celu(x, 0.5), nn.selu(x))),
    "gelu": pointwise(lambda x: (nn.gelu(x), nn.gelu(x, approximate=False))),
    "silu, mish": pointwise(lambda x: (nn.silu(x), nn.mish(x))),
    "softplus, log_sigmoid": pointwise(lambda x: (nn.softplus(x), nn.log_sigmoid(x))),
    "sigmoid, hard ones": pointwise(
        lambda x: (nn.sigmoid(x), nn.hard_sigmoid(2 * x), nn.hard_silu(x), nn.hard_tanh(x))
    ),
    "glu": pointwise(nn.glu),
    "softmax": pointwise(lambda x: (nn.softmax(x), nn.softmax(x, axis=0))),
    "log_softmax": pointwise(nn.log_softmax),
    "logsumexp": pointwise(lambda x: (nn.logsumexp(x), nn.logsumexp(x, axis=0, keepdims=True))),
    "softmax by hand": pointwise(softmaxes_by_hand, drawn(3, 3)),
    "no softmax": pointwise(no_softmaxes, drawn(3, 3)),
    "logaddexp": Row(jnp.logaddexp, (X, Y)),
    "standardize": pointwise(nn.standardize),
    "one_hot": pointwise(lambda x: nn.one_hot(jnp.argmax(x, 1), 5) @ jnp.ones((5, 2)) + x.sum()),
    "cross entropy": Row(
        lambda x, i: -jnp.take_along_axis(nn.log_softmax(x), i[:, None], 1).mean(), (X, PLACES[0, [0, 1, 0]])
    ),
    "attention": Row(
        lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=True),
        tuple(drawn(1, 3, 2, 4, seed=i).astype(np.float32) for i in range(3)),
    ),
    "transformer": Row(block, (PARAMS, drawn(3, 8))),
    "arithmetic": Row(lambda x, y: 2 * x - y / (x * x + 1) + (-y) * 3 + x * np.float64(2), (X, Y)),
    "powers": pointwise(lambda x: (x**2, x**-3, x**0.5, x**1.7, 2.0**x, jnp.square(x), jnp.cbrt(x)), positive(3)),
    "powers of arrays": Row(lambda x, y: (x**y, jnp.power(x, np.arange(4))), (positive(3, 4), Y)),
    "roots": pointwise(lambda x: (jnp.sqrt(x), lax.rsqrt(x), jnp.reciprocal(x)), positive(3, 4)),
    "exponentials": pointwise(lambda x: (jnp.exp(x), jnp.exp2(x), jnp.expm1(x), jnp.sinh(x), jnp.cosh(x), jnp.tanh(x))),
    "logarithms": pointwise(lambda x: (jnp.log(x), jnp.log1p(x), jnp.log2(x), jnp.log10(x)), positive(3, 4)),
    "polynomials": pointwise(
        lambda x: (jnp.polyval(jnp.float32([2, 1, -3]), x), jax.grad(lambda x: jnp.tanh(x).sum())(x))
    ),
    "waves": pointwise(lambda x: (jnp.sin(x), jnp.cos(x), jnp.tan(x), jnp.sinc(x))),
    "inverse functions": pointwise(
        lambda x: (jnp.arctan(x), jnp.arcsin(x / 9), jnp.arccos(x / 9), jnp.arcsinh(x), jnp.arctanh(x / 9))
    ),
    "error functions": pointwise(lambda x: (lax.erf(x), lax.erfc(2 * x))),
    "rounding": pointwise(
        lambda x: (jnp.floor(x), jnp.ceil(x), jnp.round(2 * x), jnp.sign(x), jnp.trunc(x), lax.round(x))
    ),
    "abs, maximum, minimum": Row(lambda x, y: (abs(x), jnp.maximum(x, y), jnp.minimum(x, 0.5)), (X, Y)),
    "clip, clamp": Row(lambda x, y: (jnp.clip(x, -1, 1), lax.clamp(-1.0, x, 1.0), lax.clamp(y - 1, x, y + 1)), (X, Y)),
    "where": Row(lambda m, x, y: jnp.where(m, x, jnp.where(x < y, 0.0, y)), (MASK, X, Y)),
    "comparisons": Row(lambda x, y: ((x > y) & (x != 0) | ~(y <= x), (x >= y) ^ (x == y), x < y), (X, Y)),
    "select_n": Row(lambda i, x, y: lax.select_n(i, x, y, x * y), (np.arange(12).reshape(3, 4) % 3, X, Y)),
    "finite": pointwise(
        lambda x: (jnp.isfinite(x), jnp.isnan(x), jnp.nan_to_num(x)), np.array([1, np.inf, np.nan, -np.inf])
    ),
    "stop_gradient": pointwise(lambda x: x * lax.stop_gradient(x)),
    "integers": Row(
        lambda n: (n // 3, n % 3, lax.rem(n, 3), -n, abs(n), n**3, jnp.sign(n), n.sum(), n.max()), (np.arange(-4, 5),)
    ),
    "small integers": Row(
        lambda n: (n + n, n * 3, n.astype(jnp.float64) / 2, n.mean(), n.prod()), (np.arange(100, 104, dtype=np.int8),)
    ),
    "conversions": Row(
        lambda x, n: (x.astype(int), x.astype(bool), n.astype(jnp.float32), x > n), (3 * X, np.arange(4))
    ),
    "matrix products": Row(lambda a, b: (a @ b.T, a.T @ b, a @ b[0], a[0] @ b[0], jnp.outer(a, b)), (X, Y)),
    "dot_general": Row(
        lambda a, b: lax.dot_general(a, b, (((2,), (1,)), ((0,), (2,)))), (drawn(2, 3, 4), drawn(5, 4, 2))
    ),
    "dot_general of two axes": Row(
        lambda a, b: lax.dot_general(a, b, (((0, 2), (2, 0)), ((), ()))), (drawn(2, 3, 4), drawn(4, 5, 2))
    ),
    "dot_general in a wider dtype": Row(
        lambda a: lax.dot(a, a.T, preferred_element_type=jnp.int32), (np.arange(6, dtype=np.int8).reshape(2, 3),)
    ),
    "einsum": Row(
        lambda a, b: (jnp.einsum("bij,kj->bki", a, b), jnp.einsum("ijk->kj", a), jnp.tensordot(a, b, ((2,), (1,)))),
        (CUBE, X),
    ),
    "convolution": conv_row(),
    "convolution NHWC": convolved(
        ("NHWC", "HWIO", "NHWC"), feature_group_count=2, window_strides=(2, 1), padding="SAME"
    ),
    "convolution CWNH": convolved(
        ("CWNH", "WIOH", "WCHN"), feature_group_count=2, rhs_dilation=(2, 1), padding=((1, 0), (2, 3))
    ),
    "convolution, negative padding": conv_row(padding=((-1, 2), (1, -2))),
    "convolution, spaced": conv_row(lhs_dilation=(2, 3), padding=((1, 2), (0, 1))),
    "convolution, spaced and dilated": conv_row(lhs_dilation=(2, 1), rhs_dilation=(1, 2), padding=((2, 1), (0, 2))),
    "convolution, spaced and strided": conv_row(lhs_dilation=(2, 2), window_strides=(3, 1), padding=((3, 4), (0, 1))),
    "convolution, batch groups": convolved(NCHW, drawn(4, 2, 4, 3), drawn(6, 2, 2, 2), batch_group_count=2),
    "conv_transpose": Row(
        lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), (drawn(1, 3, 4, 2), drawn(3, 2, 2, 3))
    ),
    "conv_transpose of a kernel": Row(
        lambda x, w: lax.conv_transpose(
            x, w, (2,), "VALID", transpose_kernel=True, dimension_numbers=("NHC", "HIO", "NHC")
        ),
        (drawn(1, 3, 2), drawn(3, 4, 2)),
    ),
    "convolution in one dimension": Row(lambda x, y: jnp.convolve(x, y, "full"), (drawn(5), drawn(3))),
    "gradient of a convolution": Row(
        jax.grad(
            lambda x, w: (conv_row(window_strides=(2, 1), padding="SAME").function(x, w) ** 2).sum(), argnums=(0, 1)
        ),
        (IMAGE, FILTER),
    ),
    "max pooling": pooled(-np.inf, lax.max, (1, 1, 3, 2), (1, 1, 2, 1), "SAME"),
    "min pooling of an axis of channels": pooled(np.inf, lax.min, (1, 2, 2, 1), (1, 1, 1, 2), "VALID"),
    "max pooling, padding alone": pooled(
        -np.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), ((0, 0), (0, 0), (2, 1), (0, 0))
    ),
    "max pooling, dilated": pooled(-np.inf, lax.max, (1, 1, 2, 2), (1, 1, 1, 1), "VALID", window_dilation=(1, 1, 2, 3)),
    "max pooling, spaced": pooled(-np.inf, lax.max, (1, 1, 2, 3), (1, 1, 1, 2), "VALID", base_dilation=(1, 1, 2, 1)),
    "sum pooling": pooled(0.0, lax.add, (1, 1, 2, 3), (1, 1, 2, 2), ((0, 0), (0, 0), (1, 0), (1, 1))),
    "gradient of max pooling": Row(
        jax.grad(lambda x: (pooled(-np.inf, lax.max, (1, 1, 3, 2), (1, 1, 2, 1), "SAME").function(x) * 3).sum()),
        (IMAGE,),
    ),
    "gradient of min pooling": Row(
        jax.grad(lambda x: pooled(np.inf, lax.min, (1, 1, 2, 2), (1, 1, 1, 2), "VALID").function(x).sum()), (IMAGE,)
    ),
    "tangent of max pooling": Row(
        lambda x, t: jax.jvp(pooled(-np.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID").function, (x,), (t,))[1],
        (IMAGE, IMAGE[::-1] + 1),
    ),
    "sums": pointwise(lambda x: (x.sum(), x.sum(1), x.mean((0, 2)), x.var(0), x.std(-1, keepdims=True)), CUBE),
    "products": pointwise(lambda x: (x.prod(), x.prod((0, 2))), CUBE),
    "extremes": pointwise(lambda x: (x.max(), x.min((0, 2)), x.argmax(), x.argmin(1), jnp.ptp(x, 0)), CUBE),
    "any, all": Row(lambda m: (m.any(), m.all(1), m.sum(0)), (MASK,)),
    "norms": pointwise(lambda x: (jnp.linalg.norm(x), jnp.linalg.norm(x, 1, 0), jnp.linalg.norm(x, np.inf, 1))),
    "running": pointwise(
        lambda x: (
            x.cumsum(1),
            x.cumprod(0),
            lax.cummax(x, 1, reverse=True),
            lax.cummin(x, 0),
            lax.cumlogsumexp(x, 1),
            lax.cumsum(x, 0, reverse=True),
        )
    ),
    "sort": pointwise(
        lambda x: (jnp.sort(x), jnp.argsort(x, 0), jnp.sort(x, descending=True), lax.top_k(x, 2), jnp.median(x))
    ),
    "sort by two keys": Row(lambda n, x: lax.sort((n, x, -x), num_keys=2), (np.array([2, 1, 2, 1]), ROW)),
    "shapes": pointwise(
        lambda x: (x.reshape(4, 6), x.T, jnp.moveaxis(x, 0, 2), x[None, :, 0], x.ravel(), jnp.squeeze(x[:1], 0)), CUBE
    ),
    "pieces": pointwise(
        lambda x: (
            jnp.concatenate([x, 2 * x], 1),
            jnp.stack([x, x]),
            jnp.split(x, 2, 1),
            jnp.roll(x, 1, 0),
            jnp.flip(x),
            jnp.tile(x, (2, 1)),
            jnp.repeat(x, 2, 1),
        )
    ),
    "triangles, diagonals": pointwise(
        lambda x: (jnp.tril(x), jnp.triu(x, 1), jnp.diagonal(x), jnp.trace(x), jnp.diag(x[0]))
    ),
    "pad": Row(
        lambda x, v: (
            lax.pad(x, 1.5, ((1, 2, 0), (-1, 1, 2))),
            lax.pad(x, v, ((0, 1, 1), (-1, -1, 0))),
            jnp.pad(x, 1, "reflect"),
            jnp.pad(x, 1, "edge"),
        ),
        (X, np.float64(2.5)),
    ),
    "slices": pointwise(lambda x: (x[1, -2], x[::-1, 1:], x[:, ::2], x[..., -1])),
    "constant indices": pointwise(
        lambda x: (x[:, PLACES], x[PLACES, PLACES], x[jnp.array([0, 2])], jnp.take(x, np.array([7, 0]), axis=1))
    ),
    "computed indices": Row(
        lambda x, i: (
            x[:, i],
            x[i, i],
            x[i[0], 1:],
            x.at[i].get(mode="clip"),
            jnp.take(x, i + 2, axis=0),
            x[i[0][:, None], jnp.array([1, 3])],
        ),
        (X, PLACES),
    ),
    "computed indices by axis": Row(
        lambda x, i: (
            jnp.take_along_axis(x, i, 1),
            jnp.take_along_axis(x[:, :2], i[1:], 0),
            jax.vmap(lambda x, i: x[i])(x[:2], i),
        ),
        (drawn(2, 4), PLACES),
    ),
    "integers at indices outside": Row(
        lambda n, i: (jnp.take(n, i + 2), jnp.take(n.astype(jnp.uint8), i + 2), jnp.take(n > 1, i + 2)),
        (np.arange(3), PLACES),
    ),
    "dynamic slices": Row(
        lambda x, i: (
            lax.dynamic_slice(x, (1, i), (2, 2)),
            lax.dynamic_slice(x, (5, -1), (1, 3)),
            lax.dynamic_update_slice(x, x[:2, :2] * 2, (i, 7)),
        ),
        (X, np.int64(2)),
    ),
    "updates": Row(
        lambda x, i: (
            x.at[1].set(2.0),
            x.at[:, i].add(x[:, :2, None]),
            x.at[i, 1].multiply(3),
            x.at[1:, 2].max(0.1),
            x.at[i[0], i[1]].min(0.0),
            x.at[5].add(1.0),
        ),
        (X, PLACES),
    ),
    "gradient of indexing": Row(
        jax.grad(lambda x, i: (x[i] ** 2).sum() + jnp.take(x, i + 2, axis=1, fill_value=0).sum()), (X, PLACES)
    ),
    "bits": Row(
        lambda n: (
            *(~n, n & 6, n | 9, n ^ n[::-1], n << 3, n >> 1, n << n[::-1], n >> n[::-1]),
            *(lax.shift_right_logical(n, 1), lax.shift_right_logical(n.astype(np.int8), np.int8(2))),
            lax.shift_right_logical(n.astype(np.uint8), np.uint8(9)),
        ),
        (np.array([5, -7, 200, 0, -1, 3]),),
    ),
    "constants": pointwise(
        lambda x: x * jnp.arange(4) + jnp.linspace(0, 1, 4) * jnp.eye(3, 4) + jnp.full((3, 1), np.pi) ** 2
    ),
    "scan of constants": pointwise(lambda x: lax.scan(lambda c, a: (c * x + a, a), x, np.arange(3.0))),
    "scan": Row(lambda x, y: lax.scan(lambda c, r: (jnp.tanh(c + r), c * r), y[0], x, reverse=True), (X, Y)),
    "scan within a scan": Row(
        lambda x, y: lax.scan(lambda c, r: lax.scan(lambda d, s: (d * s + c, d @ r), c, x * r.sum()), y[0], x), (X, Y)
    ),
    "scan of no step": Row(lambda x, y: lax.scan(lambda c, r: (c * r, jnp.tanh(r)), y[0], x[:0]), (X, Y)),
    "scan of no columns": pointwise(lambda x: lax.scan(lambda c, _: (c * x, None), x, length=3)[0]),
    "loops": Row(
        lambda x: (
            lax.fori_loop(1, 4, lambda i, c: c * i + x[i], x[0]),
            lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] ** 2), (0, lax.stop_gradient(x))),
        ),
        (drawn(4, 2),),
    ),
    "branches": pointwise(
        lambda x: (
            lax.cond(x[0, 0] > 0, jnp.sin, lambda x: x * 2, x),
            lax.switch(jnp.argmax(x[0]), [jnp.cos, jnp.tanh, jnp.exp, abs], x),
            lax.cond(True, jnp.sin, jnp.cos, x),
        )
    ),
    "checkpoint, vmap, nested jit": pointwise(lambda x: jax.vmap(jax.checkpoint(jax.jit(lambda r: jnp.sin(r) @ r)))(x)),
    "second derivatives": pointwise(lambda x: jax.hessian(lambda r: (nn.softplus(r) ** 2).sum())(x), ROW),
}
