"""References, kernels of them that are right, and kernels with one mistake each."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import gradspec as gs

# --- references -------------------------------------------------------------------------------------------------------


def dense(x, w, b):
    return gs.relu(x @ w + b)


def attention_weights(x):
    return gs.softmax(x, axis=-1)


def standardised(x, scale):
    centred = x - gs.mean(x, axis=-1, keepdims=True)
    return centred / gs.sqrt(gs.mean(centred * centred, axis=-1, keepdims=True) + 0.125) * scale


def gated(x, a, b):
    return (x @ a) * gs.sigmoid(x @ b)


def masked_total(x, mask):
    return gs.sum(gs.where(mask, x, 0 * x), axis=-1)


def label_loss(x, labels):
    return gs.cross_entropy(x, labels)


def moments(x):
    mean = gs.mean(x, axis=-1)
    return mean, gs.sum(x * x, axis=-1)


def clipped(x):
    return gs.clamp(x, -1.0, 2.0)


def rectified(x):
    return gs.relu(x)


def running_total(x):
    return gs.cumsum(x, -1)


class Layer(torch.nn.Module):
    """A layer of PyTorch as people write them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.inner = torch.nn.Linear(6, 5)
        self.scale = torch.nn.Parameter(torch.tensor([1.0, 2.0, 0.5, -1.0, 4.0]))

    def forward(self, x: Any) -> Any:
        return torch.relu(self.inner(x)) * self.scale


class Biased(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(6, 5)

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.fc(x))


def torch_dense(x, w, b):
    return torch.nn.functional.relu(torch.matmul(x, w) + b)


def jax_dense(x, w, b):
    return jnp.maximum(x @ w + b, 0)


def draws(rng: np.random.Generator) -> list[Any]:
    """Rows that end in zeros, as those of padded sentences do."""
    x = rng.standard_normal((3, 8)).astype(np.float32)
    x[:, int(rng.integers(1, 8)) :] = 0
    return [x]


# --- kernels that are right -------------------------------------------------------------------------------------------


def np_dense(x, w, b):
    return np.maximum(x @ w + b, 0)


def np_dense_jvp(x, w, b, dx, dw, db):
    return np.where(x @ w + b > 0, dx @ w + x @ dw + db, 0).astype(x.dtype)


def np_dense_vjp(x, w, b, g):
    g = np.where(x @ w + b > 0, g, 0).astype(x.dtype)
    return g @ w.T, x.T @ g, g.sum(0, dtype=x.dtype)


def np_softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
    return e / e.sum(axis=-1, keepdims=True)


def np_standardised(x, scale):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + x.dtype.type(0.125)) * scale


def np_gated(x, a, b):
    return (x @ a) / (1 + np.exp(-(x @ b)))


def np_masked_total(x, mask):
    return np.where(mask, x, 0 * x).sum(axis=-1, dtype=x.dtype)


def np_label_loss(x, labels):
    shifted = x - x.max(axis=-1, keepdims=True)
    logs = np.log(np.exp(shifted).sum(axis=-1)) - np.take_along_axis(shifted, labels[:, None], -1)[:, 0]
    return logs.mean(dtype=x.dtype)


def np_moments(x):
    return x.mean(axis=-1), (x * x).sum(axis=-1)


class FusedLayer(Layer):
    """The same parameters, another order of things."""

    def forward(self, x: Any) -> Any:
        return torch.relu(torch.addmm(self.inner.bias, x, self.inner.weight.T)) * self.scale


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, g, torch.zeros_like(g))


def torch_dense_own_backward(x, w, b):
    return _Relu.apply(torch.addmm(b, x, w))


@jax.jit
def jax_dense_jitted(x, w, b):
    return jnp.maximum(jnp.dot(x, w) + b, 0)


# --- kernels that are wrong -------------------------------------------------------------------------------------------


class ClampedLayer(Layer):
    """Where its product is 0, the derivative of ``clamp`` is 1, and that of ``relu`` 0."""

    def forward(self, x: Any) -> Any:
        return self.inner(x).clamp(min=0) * self.scale


def without_bias(x, w, b):
    return np.maximum(x @ w, 0)


class Unbiased(Biased):
    def forward(self, x: Any) -> Any:
        return torch.tanh(x @ self.fc.weight.T)


def along_columns(x):
    e = np.exp(x - x.max(axis=0, keepdims=True, initial=-np.inf))
    return e / e.sum(axis=0, keepdims=True)


def unshifted(x):
    e = np.exp(x)
    return e / e.sum(axis=-1, keepdims=True)


def epsilon_outside(x, scale):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / (np.sqrt((centred * centred).mean(axis=-1, keepdims=True)) + x.dtype.type(0.125)) * scale


def unbiased(x, scale):
    centred = x - x.mean(axis=-1, keepdims=True)
    squares = (centred * centred).sum(axis=-1, keepdims=True) / max(x.shape[-1] - 1, 1)
    return centred / np.sqrt(squares + x.dtype.type(0.125)) * scale


def tail_left(x, w, b):
    """Columns in blocks of four, the last one short by a column."""
    y = np.zeros((x.shape[0], w.shape[1]), x.dtype)
    for start in range(0, w.shape[1], 4):
        stop = start + 4 if start + 4 <= w.shape[1] else w.shape[1] - 1
        y[:, start:stop] = np.maximum(x @ w[:, start:stop] + b[start:stop], 0)
    return y


def inner_tail_left(x, w, b):
    """The inner axis in blocks of sixteen: what is left is not added."""
    whole = x.shape[1] // 16 * 16 or x.shape[1]
    return np.maximum(x[:, :whole] @ w[:whole] + b, 0)


def unmasked(x, mask):
    return x.sum(axis=-1, dtype=x.dtype)


def swapped(x, a, b):
    return (x @ b) / (1 + np.exp(-(x @ a)))


def narrow_sums(x, w, b):
    total = np.zeros((x.shape[0], w.shape[1]), np.float16)
    for k in range(x.shape[1]):
        total = total + np.outer(x[:, k], w[k]).astype(np.float16)
    return np.maximum(total + b, 0).astype(x.dtype)


def tensor_cores(x, w, b):
    """Factors of 11 bits, as TF32 has them, and sums in float32."""
    x, w = (((a.view(np.int32) + (1 << 12)) & ~0x1FFF).view(np.float32) for a in (x, w))
    return np.maximum(x @ w + b, 0)


def zeros(x, w, b):
    return np.zeros((x.shape[0], w.shape[1]), x.dtype)


def constant(x):
    return np.full_like(x, 0.25)


def its_input(x):
    return x.copy()


class Stale:
    """Keeps the result of a shape, whatever the numbers."""

    def __init__(self) -> None:
        self.kept: dict[Any, Any] = {}

    def __call__(self, x, w, b):
        return self.kept.setdefault((x.shape, w.shape), np_dense(x, w, b)).copy()


def in_place(x):
    x -= x.max(axis=-1, keepdims=True, initial=-np.inf)
    np.exp(x, out=x)
    return x / x.sum(axis=-1, keepdims=True)


class _OtherTie(torch.autograd.Function):
    """Twice the cotangent where the input is 0: no derivative on either side."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, g, torch.where(x == 0, 2 * g, torch.zeros_like(g)))


def other_tie(x):
    return _OtherTie.apply(x)


def nan_swallowed(x):
    return np.fmin(np.fmax(x, x.dtype.type(-1)), x.dtype.type(2))


def averaged_gradient(x, w, b, g):
    gx, gw, gb = np_dense_vjp(x, w, b, g)
    return gx, gw, gb / max(len(x), 1)


def cotangent_ignored(x, w, b, g):
    return np_dense_vjp(x, w, b, np.ones_like(g))


def first_result_twice(x):
    mean, _ = np_moments(x)
    return mean, mean


def labels_off_by_one(x, labels):
    return np_label_loss(x, np.maximum(labels - 1, 0))


def padding_is_largest(x):
    """Rows are filled up to a multiple of 4 with zeros, which count for the maximum alone."""
    filled = np.pad(x, ((0, 0), (0, -x.shape[1] % 4)))
    e = np.exp(x - filled.max(axis=-1, keepdims=True, initial=-np.inf))
    return e / e.sum(axis=-1, keepdims=True)


def padding_varies(x, scale):
    """Rows are filled up to a power of two with zeros, from which the mean is subtracted, too."""
    n = x.shape[-1]
    filled = np.pad(x, ((0, 0), (0, (1 << max(n - 1, 0).bit_length()) - n)))
    centred = filled - x.mean(axis=-1, keepdims=True)
    squares = (centred * centred).sum(axis=-1, keepdims=True) / x.dtype.type(n)
    return centred[:, :n] / np.sqrt(squares + x.dtype.type(0.125)) * scale


def wraps_at_block(x):
    """A running total in blocks of 32 that forgets what earlier blocks came to."""
    return np.concatenate([np.cumsum(x[..., i : i + 32], -1) for i in range(0, max(x.shape[-1], 1), 32)], -1)


# --- the tables -------------------------------------------------------------------------------------------------------

DENSE = "f32[4,6],f32[6,5],f32[5]"


@dataclass(frozen=True)
class Row:
    """A kernel, its reference, and what should come of judging it."""

    kernel: Any
    spec: Any
    inputs: Any
    title: str = ""
    """A pattern of the titles of a wrong kernel, one of which matches."""
    options: dict[str, Any] = field(default_factory=dict)
    modes: tuple[str, ...] = ("value",)
    """Those that a right kernel is judged in, or that a wrong one is wrong in."""

    def __str__(self) -> str:
        return getattr(self.kernel, "__name__", type(self.kernel).__name__)

    @property
    def made(self) -> Any:
        """The kernel, new where it keeps something."""
        return self.kernel() if self.kernel is Stale else self.kernel


ALL: tuple[str, ...] = ("value", "jvp", "vjp", "second")
RIGHT: list[Row] = [
    Row(np_dense, dense, DENSE, options={"jvp": np_dense_jvp, "vjp": np_dense_vjp}, modes=ALL[:3]),
    Row(np_softmax, attention_weights, "f32[3,9]"),
    Row(np_standardised, standardised, [gs.f32[4, 9], gs.f32[9]]),
    Row(np_gated, gated, "f32[3,4],f32[4,5],f32[4,5]"),
    Row(np_masked_total, masked_total, "f32[3,8],bool[3,8]"),
    Row(np_label_loss, label_loss, "f32[4,7],i64[4]"),
    Row(np_moments, moments, "f32[4,6]; f32[1,40]"),
    Row(np_softmax, attention_weights, draws),
    Row(np_dense, gs.trace(dense, gs.f32[4, 6], gs.f32[6, 5], gs.f32[5]), DENSE),
    Row(FusedLayer, Layer, "f32[3,6]", modes=ALL, options={"cases": 28}),
    Row(torch_dense_own_backward, torch_dense, DENSE, modes=("value", "vjp", "second"), options={"cases": 24}),
    Row(jax_dense_jitted, jax_dense, DENSE, modes=ALL, options={"cases": 26}),
    Row(np_dense, torch_dense, DENSE, options={"cases": 20}),
]
WRONG: list[Row] = [
    Row(without_bias, dense, DENSE, "[Ii]ts input b is ignored"),
    Row(along_columns, attention_weights, "f32[3,9]"),
    Row(unshifted, attention_weights, "f32[3,9]", "where x is beyond ±64"),
    Row(epsilon_outside, standardised, "f32[4,9],f32[9]"),
    Row(unbiased, standardised, "f32[4,9],f32[9]", "one term less"),
    Row(tail_left, dense, DENSE, "axis 1 of w is no multiple of 4"),
    Row(inner_tail_left, dense, DENSE, options={"blocks": (16,)}),
    Row(unmasked, masked_total, "f32[3,8],bool[3,8]", "input mask is ignored"),
    Row(swapped, gated, "f32[3,4],f32[4,5],f32[4,5]", "[Aa] and b are exchanged"),
    Row(narrow_sums, dense, "f32[4,40],f32[40,5],f32[5]", "accumulator: 11 bits"),
    Row(tensor_cores, dense, "f32[4,40],f32[40,5],f32[5]", "arithmetic may be tf32"),
    Row(zeros, dense, DENSE, "is zeros"),
    Row(constant, attention_weights, "f32[3,9]", "one number in every cell"),
    Row(its_input, attention_weights, "f32[3,9]", "is its input x"),
    Row(Stale, dense, DENSE, "same for other numbers, as a stale one"),
    Row(in_place, attention_weights, "f32[3,9]", "changes its input x"),
    Row(ClampedLayer, Layer, "f32[3,6]", "another subgradient", modes=ALL, options={"cases": 28}),
    Row(other_tie, rectified, "f32[3,8]", "gradient", modes=("vjp",)),
    Row(nan_swallowed, clipped, "f32[3,8]", "NaN is lost"),
    Row(np_dense, dense, DENSE, "gradient of b", {"vjp": averaged_gradient}, modes=("vjp",)),
    Row(np_dense, dense, DENSE, "[Ii]ts input g is ignored", {"vjp": cotangent_ignored}, modes=("vjp",)),
    Row(first_result_twice, moments, "f32[4,6]"),
    Row(labels_off_by_one, label_loss, "f32[4,7],i64[4]"),
    Row(padding_is_largest, attention_weights, "f32[3,9]", "axis 1 of x is no multiple of 4"),
    Row(padding_varies, standardised, "f32[4,9],f32[9]", "axis 1 of x is no power of two"),
    Row(wraps_at_block, running_total, "f32[3,9]", "axis 1 of x is longer than 32", {"blocks": (32,)}),
]


def seeing(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that keeps the shapes of its arrays in ``shapes``."""

    def call(*arrays: Any) -> Any:
        shapes.add(tuple(np.shape(array) for array in arrays))
        return kernel(*arrays)

    shapes: set[Any] = set()
    call.shapes = shapes  # type: ignore[attr-defined]
    return call
