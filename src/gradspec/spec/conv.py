"""Convolution and transposed convolution, with stride, asymmetric padding, dilation and groups, in any rank.

Everything here is one trilinear form over a window (``window.py``),

    T(x, W, g) = Σ  x̃[c, o·s − lo + d·k] · W[m, c, k] · g[m, o],

``x̃`` being ``x`` extended by zeros, ``c`` and ``m`` running over the channels of one group. It has three partial
transposes, and they are each other's derivatives:

    read(x, W)     = ∂T/∂g    convolution (cross-correlation: the kernel is not flipped)
    write(g, W)    = ∂T/∂x    transposed convolution, and the input gradient of convolution
    compare(x, g)  = ∂T/∂W    the weight gradient of both

A tensor is ``(*lead, C, *spatial)``. Both operators have weights ``(channels of g, channels of x / groups, *kernel)``.
Padding zeros take part in the arithmetic: a non-finite weight over a padded cell gives NaN.
Sums run over the channel first, then over the kernel in row-major order, from zero; the bias comes last.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from gradspec.spec.errors import ShapeError
from gradspec.spec.scalar import Scalar, add_up, dot
from gradspec.spec.tensor import Index, Tensor, TensorLike, require_shape, tensor
from gradspec.spec.window import Ints, Padding, Window, per_axis, regular, spatial_sizes, transposed, whole_number

Sample: TypeAlias = list[list[Scalar]]
"""The flat planes of one sample, one per channel."""


@dataclass(frozen=True, slots=True)
class Form:
    """The trilinear form: a window, the channels of ``x`` and of ``g``, and the groups that split both."""

    window: Window
    x_channels: int
    g_channels: int
    groups: int
    kernel: Index

    @property
    def x_shape(self) -> Index:
        return (self.x_channels, *self.window.sizes)

    @property
    def g_shape(self) -> Index:
        return (self.g_channels, *self.window.outputs)

    @property
    def w_shape(self) -> Index:
        return (self.g_channels, self.x_channels // self.groups, *self.kernel)

    def x_channels_of(self, m: int) -> range:
        """The channels of ``x`` that meet channel ``m`` of ``g``."""
        return _group_of(m, self.g_channels, self.x_channels, self.groups)

    def g_channels_of(self, c: int) -> range:
        """The channels of ``g`` that meet channel ``c`` of ``x``."""
        return _group_of(c, self.x_channels, self.g_channels, self.groups)

    def samples(self, t: Tensor) -> list[Sample]:
        """``t`` as ``[sample][channel][position]``."""
        planes, channels = t.planes(self.window.rank), t.shape[-1 - self.window.rank]
        return [planes[i * channels : (i + 1) * channels] for i in range(prod(self.lead(t)))]

    def lead(self, t: Tensor) -> Index:
        return t.shape[: t.ndim - self.window.rank - 1]


def _group_of(channel: int, channels: int, partners: int, groups: int) -> range:
    width = partners // groups
    group = channel // (channels // groups)
    return range(group * width, (group + 1) * width)


def read(form: Form, x: Tensor, w: Tensor) -> Tensor:
    """``y[m, o] = Σ_c Σ_k x̃[c, o·s − lo + d·k] · W[m, c, k]``."""
    table, kernels, zero = form.window.table(), w.planes(1 + form.window.rank), x.zero
    start = zero * w.zero

    def value(sample: Sample, m: int, taps: list[int | None]) -> Scalar:
        planes = [sample[c] for c in form.x_channels_of(m)]
        return dot(start, [zero if t is None else plane[t] for plane in planes for t in taps], kernels[m])

    outputs = [(m, taps) for m in range(form.g_channels) for taps in table]
    return Tensor(form.lead(x) + form.g_shape, (value(s, m, taps) for s in form.samples(x) for m, taps in outputs))


def write(form: Form, g: Tensor, w: Tensor) -> Tensor:
    """``x[c, i] = Σ_m Σ_k g[m, o] · W[m, c, k]`` over the ``(k, o)`` with ``o·s − lo + d·k = i``."""
    readers, kernels, start = form.window.readers(), form.samples(w), g.zero * w.zero
    width = form.x_channels // form.groups

    def value(sample: Sample, c: int, pairs: list[tuple[int, int]]) -> Scalar:
        channels = form.g_channels_of(c)
        taps = [kernel[k] for kernel in (kernels[m][c % width] for m in channels) for k, _ in pairs]
        return dot(start, [plane[o] for plane in (sample[m] for m in channels) for _, o in pairs], taps)

    cells = [(c, pairs) for c in range(form.x_channels) for pairs in readers]
    return Tensor(form.lead(g) + form.x_shape, (value(s, c, pairs) for s in form.samples(g) for c, pairs in cells))


def compare(form: Form, x: Tensor, g: Tensor) -> Tensor:
    """``W[m, c, k] = Σ x̃[c, o·s − lo + d·k] · g[m, o]`` over samples and outputs."""
    by_tap, zero = list(zip(*form.window.table(), strict=True)), x.zero
    xs, gs, start = form.samples(x), form.samples(g), zero * g.zero

    def value(m: int, c: int, taps: tuple[int | None, ...]) -> Scalar:
        cells = [zero if t is None else plane[t] for plane in (sample[c] for sample in xs) for t in taps]
        return dot(start, cells, [cotangent for sample in gs for cotangent in sample[m]])

    entries = [(m, c, taps) for m in range(form.g_channels) for c in form.x_channels_of(m) for taps in by_tap]
    return Tensor(form.w_shape, (value(m, c, taps) for m, c, taps in entries))


def _plus(a: Tensor, b: Tensor) -> Tensor:
    return Tensor(a.shape, (p + q for p, q in zip(a.cells, b.cells, strict=True)))


def plus_bias(form: Form, y: Tensor, b: Tensor | None) -> Tensor:
    if b is None:
        return y
    return Tensor(y.shape, (v + b[m] for sample in form.samples(y) for m, plane in enumerate(sample) for v in plane))


def _bias_cotangent(form: Form, g: Tensor, b: Tensor | None) -> Tensor | None:
    """The cotangent summed over everything but channels."""
    if b is None:
        return None
    samples = form.samples(g)
    sums = (add_up((v for sample in samples for v in sample[m]), g.zero) for m in range(len(b.cells)))
    return Tensor(b.shape, sums).stored()


def _tensor_or_none(b: TensorLike | None) -> Tensor | None:
    return None if b is None else tensor(b)


# --- convolution ------------------------------------------------------------------------------------------------------


def conv(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    """``read(x, W) + b``: x ``(*lead, C, *spatial)``, weight ``(M, C / groups, *kernel)``, bias ``(M,)`` or None.

    >>> conv([[1, 2, 3]], [[[1, 10]]], [100]).tolist()
    [[121, 132]]
    """
    x, w, b = tensor(x), tensor(weight), _tensor_or_none(bias)
    form = conv_form(x, w, b, stride, padding, dilation, groups)
    return plus_bias(form, read(form, x, w), b).stored()


def conv_jvp(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    dx: TensorLike,
    dweight: TensorLike,
    dbias: TensorLike | None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    """``read(dx, W) + read(x, dW) + db``.

    >>> conv_jvp([[1, 2, 3]], [[[1, 10]]], None, [[1, 0, 0]], [[[0, 1]]], None).tolist()
    [[3, 3]]
    """
    x, w, b = tensor(x), tensor(weight), _tensor_or_none(bias)
    dx, dw, db = tensor(dx), tensor(dweight), _tensor_or_none(dbias)
    form = conv_form(x, w, b, stride, padding, dilation, groups)
    require_tangents(x, w, b, dx, dw, db)
    return plus_bias(form, _plus(read(form, dx, w), read(form, x, dw)), db).stored()


def conv_vjp(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    g: TensorLike,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``(write(g, W), compare(x, g), Σ g)``: the cotangents of x, weight and bias (None without a bias).

    >>> dx, dw, db = conv_vjp([[1, 2, 3]], [[[1, 10]]], [0], [[1, 1]])
    >>> dx.tolist(), dw.tolist(), db.tolist()
    ([[1, 11, 10]], [[[3, 5]]], [2])
    """
    x, w, b, g = tensor(x), tensor(weight), _tensor_or_none(bias), tensor(g)
    form = conv_form(x, w, b, stride, padding, dilation, groups)
    require_shape("cotangent", g, form.lead(x) + form.g_shape)
    return write(form, g, w).stored(), compare(form, x, g).stored(), _bias_cotangent(form, g, b)


# --- transposed convolution: the same form, read from the other side --------------------------------------------------


def conv_transpose(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """``write(x, W) + b``: x ``(*lead, C, *spatial)``, weight ``(C, M / groups, *kernel)``, bias ``(M,)`` or None.

    >>> conv_transpose([[1, 2]], [[[1, 10]]], stride=2).tolist()
    [[1, 10, 2, 20]]
    """
    x, w, b = tensor(x), tensor(weight), _tensor_or_none(bias)
    form = transposed_form(x, w, b, stride, padding, output_padding, groups, dilation)
    return plus_bias(form, write(form, x, w), b).stored()


def conv_transpose_jvp(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    dx: TensorLike,
    dweight: TensorLike,
    dbias: TensorLike | None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """``write(dx, W) + write(x, dW) + db``.

    >>> conv_transpose_jvp([[1, 2]], [[[1, 10]]], None, [[1, 0]], [[[0, 1]]], None, stride=2).tolist()
    [[1, 11, 0, 2]]
    """
    x, w, b = tensor(x), tensor(weight), _tensor_or_none(bias)
    dx, dw, db = tensor(dx), tensor(dweight), _tensor_or_none(dbias)
    form = transposed_form(x, w, b, stride, padding, output_padding, groups, dilation)
    require_tangents(x, w, b, dx, dw, db)
    return plus_bias(form, _plus(write(form, dx, w), write(form, x, dw)), db).stored()


def conv_transpose_vjp(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    g: TensorLike,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``(read(g, W), compare(g, x), Σ g)``: the cotangents of x, weight and bias (None without a bias).

    >>> dx, dw, db = conv_transpose_vjp([[1, 2]], [[[1, 10]]], None, [[1, 1, 1, 1]], stride=2)
    >>> dx.tolist(), dw.tolist(), db
    ([[11, 11]], [[[3, 3]]], None)
    """
    x, w, b, g = tensor(x), tensor(weight), _tensor_or_none(bias), tensor(g)
    form = transposed_form(x, w, b, stride, padding, output_padding, groups, dilation)
    require_shape("cotangent", g, form.lead(x) + form.x_shape)
    return read(form, g, w).stored(), compare(form, g, x).stored(), _bias_cotangent(form, g, b)


# --- sizes that must agree -------------------------------------------------------------------------------------------


def conv_form(
    x: Tensor, w: Tensor, b: Tensor | None, stride: Ints, padding: Padding, dilation: Ints, groups: int
) -> Form:
    rank, kernel = _kernel_of(w)
    sizes = spatial_sizes(x.shape, rank, channels=1)
    channels, outputs, per_group = x.shape[-1 - rank], w.shape[0], w.shape[1]
    _require_groups(groups, x=channels, weight=outputs)
    if per_group * groups != channels:
        raise ShapeError(
            f"x has {channels} channels (shape {x.shape}), but the weight of shape {w.shape} with groups={groups} "
            f"reads {per_group * groups}; the weight is (C_out, C_in / groups, *kernel)"
        )
    _require_bias(b, outputs)
    window = regular(sizes, kernel, per_axis("stride", stride, rank, least=1), padding, dilation)
    return Form(window, channels, outputs, groups, kernel)


def transposed_form(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    stride: Ints,
    padding: Padding,
    output_padding: Ints,
    groups: int,
    dilation: Ints,
) -> Form:
    rank, kernel = _kernel_of(w)
    sizes = spatial_sizes(x.shape, rank, channels=1)
    channels, per_group = x.shape[-1 - rank], w.shape[1]
    _require_groups(groups, x=channels)
    if w.shape[0] != channels:
        raise ShapeError(
            f"x has {channels} channels (shape {x.shape}), but the weight of shape {w.shape} reads {w.shape[0]}; "
            "the weight of a transposed convolution is (C_in, C_out / groups, *kernel)"
        )
    _require_bias(b, per_group * groups)
    window = transposed(sizes, kernel, stride, padding, output_padding, dilation)
    return Form(window, per_group * groups, channels, groups, kernel)


def _kernel_of(w: Tensor) -> tuple[int, Index]:
    if w.ndim < 2:
        raise ShapeError(f"the weight has shape {w.shape}; it needs two channel axes before the kernel's axes")
    return w.ndim - 2, w.shape[2:]


def _require_groups(groups: int, **channels: int) -> None:
    whole_number("groups", groups, least=1)
    for name, count in channels.items():
        if count % groups:
            raise ShapeError(f"groups={groups} does not divide the {count} channels of {name}; choose a divisor")


def _require_bias(b: Tensor | None, channels: int) -> None:
    if b is not None and b.shape != (channels,):
        raise ShapeError(f"bias has shape {b.shape}; one number per output channel, shape ({channels},), is needed")


def require_tangents(x: Tensor, w: Tensor, b: Tensor | None, dx: Tensor, dw: Tensor, db: Tensor | None) -> None:
    require_shape("tangent of x", dx, x.shape)
    require_shape("tangent of weight", dw, w.shape)
    if (b is None) != (db is None):
        raise ShapeError("bias and its tangent go together: give both, or None for both")
    if b is not None and db is not None:
        require_shape("tangent of bias", db, b.shape)
