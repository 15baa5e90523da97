"""Convolution, transposed convolution and their weight gradient: the three partial transposes of one trilinear form.

``T(x, w, g)`` (``spec/conv.py``) has three tensors. An operator takes two of them and gives the third, so it is linear
in each, its transposes are the other two operators, and one rule serves all three. They share one attribute record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, Self

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import IMPLIED, Crop, Op, Operand, Sums, Var, ones, usual
from gradspec.graph.types import TensorType, require_floats, require_sums
from gradspec.ops.gather import moved
from gradspec.ops.layout import transpose, turned
from gradspec.ops.linear import biased_jvp, matmul, merge_batch, split_batch
from gradspec.ops.rules import applying, most_cells, most_windows, require_count
from gradspec.ops.shape import broadcast_to, reshape, with_leading_axis
from gradspec.ops.shape import sum as sum_over
from gradspec.ops.windows import gather_windows, scatter_windows
from gradspec.spec.conv import Form, compare, conv_form, plus_bias, read, transposed_form, write
from gradspec.spec.errors import ShapeError
from gradspec.spec.tensor import Tensor
from gradspec.spec.window import Ints, Padding, Regular, Window, spatial_sizes, stated, whole_number

ROLES = {"conv": ("x", "w", "g"), "conv_transpose": ("g", "w", "x"), "conv_weight_grad": ("x", "g", "w")}
"""Which tensors of the form an operator takes, and which it gives."""


Sizes = tuple[int, ...]


@dataclass(frozen=True)
class StatedWindows:
    """Regular windows with every extent stated, one entry per spatial axis."""

    sizes: Sizes = field(metadata=IMPLIED)
    kernel: Sizes
    stride: Sizes = field(metadata=usual(1))
    padding: tuple[tuple[int, int], ...] = field(metadata=usual((0, 0)))
    dilation: Sizes = field(metadata=usual(1))
    outputs: Sizes = field(metadata=IMPLIED)

    @classmethod
    def of(cls, window: Window, **others: int) -> Self:
        """The record of a window that was made, and checked, where the user's arguments were read."""
        axes = [axis for axis in window.axes if isinstance(axis, Regular)]
        found = cls(
            sizes=window.sizes,
            kernel=tuple(axis.kernel for axis in axes),
            stride=tuple(axis.stride for axis in axes),
            padding=tuple((axis.lo, axis.hi) for axis in axes),
            dilation=tuple(axis.dilation for axis in axes),
            outputs=window.outputs,
            **others,
        )
        vars(found)["window"] = window
        return found

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @cached_property
    def window(self) -> Window:
        """The window, if its numbers make one: every tap must lie on the padded axis."""
        return stated(self.sizes, self.kernel, self.stride, self.padding, self.dilation, self.outputs)


@dataclass(frozen=True)
class Convolution(StatedWindows):
    """The form's window, and the groups that split the channels."""

    groups: int = 1

    @classmethod
    def of_form(cls, form: Form) -> Convolution:
        return cls.of(form.window, groups=int(form.groups))


def _form(attrs: Convolution, x: Any = None, w: Any = None, g: Any = None) -> Form:
    """The form, its channels read off two of its three tensors, which must fit it."""
    groups, rank = whole_number("groups", attrs.groups, least=1), attrs.rank
    for t in (x, g):
        if t is not None:
            spatial_sizes(t.shape, rank, channels=1)
    if w is not None and w.ndim != rank + 2:
        raise ShapeError(f"convolution: the weight is {w}, which has {w.ndim} axes; {rank + 2} are needed")
    x_channels = w.shape[1] * groups if x is None else x.shape[-1 - rank]
    g_channels = w.shape[0] if g is None else g.shape[-1 - rank]
    if x_channels % groups or g_channels % groups:
        raise ShapeError(f"groups={groups} does not divide the {x_channels} and {g_channels} channels")
    form = Form(attrs.window, x_channels, g_channels, groups, attrs.kernel)
    for t, shape in ((x, form.x_shape), (g, form.g_shape), (w, form.w_shape)):
        if t is not None and t.shape[-len(shape) :] != shape:
            raise ShapeError(f"a tensor of shape {t.shape} does not end in {shape}, which the geometry states")
    return form


def _types(name: str) -> Callable[..., tuple[TensorType]]:
    a, b, result = ROLES[name]

    def rule(attrs: Convolution, first: TensorType, second: TensorType, *bias: TensorType) -> tuple[TensorType]:
        require_count(name, (first, second, *bias), *((2,) if result == "w" else (2, 3)))
        dtype = (require_sums if result == "g" else require_floats)(name, first, second, *bias)
        form = _form(attrs, **{a: first, b: second})
        lead = first.shape[: first.ndim - attrs.rank - 1]
        if result == "w" and second.shape[: second.ndim - attrs.rank - 1] != lead:
            raise ShapeError(f"{name}: the leading axes of {first} and {second} differ")
        shape = {"x": lead + form.x_shape, "g": lead + form.g_shape, "w": form.w_shape}[result]
        channels = shape[-1 - attrs.rank]
        if bias and bias[0].shape != (channels,):
            raise ShapeError(f"{name}: the bias is {bias[0]}; one number per output channel, ({channels},), is needed")
        return (TensorType(dtype, shape),)

    return rule


def _spec(name: str) -> Callable[..., tuple[Tensor]]:
    a, b, result = ROLES[name]
    contract = {"g": read, "x": write, "w": compare}[result]

    def rule(attrs: Convolution, first: Tensor, second: Tensor, bias: Tensor | None = None) -> tuple[Tensor]:
        form = _form(attrs, **{a: first, b: second})
        return (plus_bias(form, contract(form, first, second), bias).stored(),)

    return rule


def _transpose(name: str) -> Callable[..., Var]:
    roles = ROLES[name]

    def rule(attrs: Convolution, cotangents: Sequence[Var], operands_: Sequence[Var], i: int) -> Var:
        (cotangent,) = cotangents
        if i == 2:  # the bias
            channel = cotangent.ndim - attrs.rank - 1
            return sum_over(cotangent, [a for a in range(cotangent.ndim) if a != channel])
        known = {roles[2]: cotangent, roles[1 - i]: operands_[1 - i]}
        op = BY_RESULT[roles[i]]
        if op is WRITE and _is_blocked(attrs) and prod(attrs.kernel) > prod(attrs.outputs):
            return _write_blocks(attrs, known["g"], known["w"])
        return apply(op, attrs, *(known[role] for role in ROLES[op.name][:2]))

    return rule


def _is_blocked(attrs: Convolution) -> bool:
    """Whether the windows are blocks that cover the input, as of patches that become vectors."""
    tiled = tuple(k * n for k, n in zip(attrs.kernel, attrs.outputs, strict=True)) == tuple(attrs.sizes)
    spread = any(d != 1 and k != 1 for k, d in zip(attrs.kernel, attrs.dilation, strict=True))
    padded = any(lo or hi for lo, hi in attrs.padding)
    return tiled and attrs.stride == attrs.kernel and attrs.groups == 1 and not spread and not padded


def _write_blocks(attrs: Convolution, g: Var, w: Var) -> Var:
    """Transposed convolution by few large blocks: one product of matrices, in which each block is a row."""
    lead, channels, rank = g.shape[: g.ndim - attrs.rank - 1], w.shape[1], attrs.rank
    last = moved(g, len(lead), g.ndim - 1)
    rows = matmul(reshape(last, (prod(last.shape[:-1]), w.shape[0])), reshape(w, (w.shape[0], prod(w.shape[1:]))))
    cells = reshape(rows, (prod(lead), *attrs.outputs, channels, *attrs.kernel))
    axes = [axis for i in range(rank) for axis in (1 + i, 2 + rank + i)]
    return reshape(transpose(cells, (0, 1 + rank, *axes)), (*lead, channels, *attrs.sizes))


def _spread_bias(attrs: Convolution, bias: Var, like: Var) -> Var:
    return broadcast_to(reshape(bias, (*bias.shape, *(1,) * attrs.rank)), like.shape)


def _batch(op: Op, attrs: Convolution, operands_: Sequence[Var], batched: Sequence[bool]) -> tuple[Var, ...]:
    """One more leading axis, if only the operand that has them is batched; else the batch is folded into the groups."""
    if op is not WEIGHT_GRAD and not any(batched[1:]):
        return (apply(op, attrs, *operands_),)
    together = with_leading_axis(operands_, batched)
    n = together[0].shape[0]
    if n == 0:
        (one,) = op.types(attrs, *(TensorType(v.dtype, v.shape[1:]) for v in together))
        return (together[0].owner.zeros(TensorType(one.dtype, (0, *one.shape))),)
    roles = (*ROLES[op.name][:2], "bias")
    folded = [merge_batch(v, _channel_axis(attrs, v, role)) for v, role in zip(together, roles, strict=False)]
    result = apply(op, replace(attrs, groups=n * attrs.groups), *folded)
    axis = _channel_axis(attrs, result, ROLES[op.name][2], batch=0)
    return (split_batch(result, axis, (n, result.shape[axis] // n)),)


def _channel_axis(attrs: Convolution, v: Var, role: str, batch: int = 1) -> int:
    """The axis that groups split, behind ``batch`` batch axes: the first of weights and biases."""
    return v.ndim - attrs.rank - 1 if role in ("x", "g") else batch


def _crop(attrs: Convolution, types: Sequence[TensorType], sizes: Sizes) -> Crop:
    """A patch of a convolution is one without padding; the weight and the bias are needed whole."""
    if len(sizes) != attrs.rank:
        return None
    taps = zip(sizes, attrs.kernel, attrs.stride, attrs.dilation, strict=True)
    needed = tuple((n - 1) * s + (k - 1) * d + 1 for n, k, s, d in taps)
    patch = replace(attrs, sizes=needed, padding=((0, 0),) * attrs.rank, outputs=sizes)
    axes = [(s, lo, n) for s, (lo, _), n in zip(attrs.stride, attrs.padding, needed, strict=True)]
    return patch, [axes, None, None][: len(types)]


def _terms(name: str) -> Callable[..., int]:
    """The products that one cell of the result adds up, at most, and the bias."""
    a, b, result = ROLES[name]
    taps = _taps(name)

    def rule(attrs: Convolution, first: TensorType, second: TensorType, *bias: TensorType) -> int:
        form = _form(attrs, **{a: first, b: second})
        channels = {"g": form.x_channels // attrs.groups, "x": form.g_channels // attrs.groups, "w": 1}
        return channels[result] * (taps(attrs, first, second, *bias) - len(bias)) + len(bias)

    return rule


def _taps(name: str) -> Callable[..., int]:
    """The taps that one cell of the result meets, at most, and the bias."""
    a, b, result = ROLES[name]

    def rule(attrs: Convolution, first: TensorType, second: TensorType, *bias: TensorType) -> int:
        form = _form(attrs, **{a: first, b: second})
        met = {
            "g": most_cells(form.window),
            "x": most_windows(form.window),
            "w": prod(attrs.outputs) * prod(first.shape[: first.ndim - attrs.rank - 1]),
        }
        return met[result] + len(bias)

    return rule


# --- as products of matrices, one for each group: g = w·columns, columns = wᵀ·g and w = g·columnsᵀ --------------------


def columns(attrs: StatedWindows, x: Var) -> Var:
    """``(*lead, C, *sizes)`` to ``(*lead, C·taps, windows)``."""
    at, cells = x.ndim - attrs.rank, gather_windows(x, attrs.window)
    taps_first = transpose(cells, [*range(at), cells.ndim - 1, *range(at, cells.ndim - 1)])
    return reshape(taps_first, (*x.shape[: at - 1], x.shape[at - 1] * prod(attrs.kernel), prod(attrs.outputs)))


def add_columns(attrs: StatedWindows, x: Var) -> Var:
    """The transpose of ``columns``."""
    taps, at = prod(attrs.kernel), x.ndim - 1
    split = reshape(x, (*x.shape[:-2], x.shape[-2] // taps, taps, *attrs.outputs))
    return scatter_windows(transpose(split, [*range(at), *range(at + 1, split.ndim), at]), attrs.window)


def _grouped(attrs: Convolution, x: Var, lead: int) -> Var:
    """``(*lead, rows, cells…)`` as one matrix for each group: ``(*lead, groups, rows / groups, cells)``."""
    return reshape(x, (*x.shape[:lead], attrs.groups, x.shape[lead] // attrs.groups, prod(x.shape[lead + 1 :])))


def _plus_bias(attrs: Convolution, y: Var, bias: Sequence[Var]) -> tuple[Var]:
    return (y + _spread_bias(attrs, bias[0], y),) if bias else (y,)


def _decompose_read(attrs: Convolution, x: Var, w: Var, *bias: Var) -> tuple[Var]:
    lead = x.ndim - attrs.rank - 1
    product = matmul(_grouped(attrs, w, 0), _grouped(attrs, columns(attrs, x), lead))
    return _plus_bias(attrs, reshape(product, (*x.shape[:lead], w.shape[0], *attrs.outputs)), bias)


def _decompose_write(attrs: Convolution, g: Var, w: Var, *bias: Var) -> tuple[Var]:
    lead = g.ndim - attrs.rank - 1
    product = matmul(turned(_grouped(attrs, w, 0)), _grouped(attrs, g, lead))
    rows = attrs.groups * w.shape[1] * prod(attrs.kernel)
    return _plus_bias(attrs, add_columns(attrs, reshape(product, (*g.shape[:lead], rows, prod(attrs.outputs)))), bias)


def _decompose_weight_grad(attrs: Convolution, x: Var, g: Var) -> tuple[Var]:
    """Samples are cells like others."""
    lead = x.ndim - attrs.rank - 1

    def joined(v: Var) -> Var:
        return _grouped(attrs, transpose(v, [lead, *range(lead), *range(lead + 1, v.ndim)]), 0)

    product = matmul(joined(g), turned(joined(columns(attrs, x))))
    return (reshape(product, (g.shape[lead], x.shape[lead] // attrs.groups, *attrs.kernel)),)


def _biased(name: str, decompose: Callable[..., tuple[Var]]) -> Op:
    return Op(
        name,
        Convolution,
        types=_types(name),
        spec=_spec(name),
        batch=_batch,
        sums=Sums(
            max_roundings=_terms(name), factors=(0, 1), bias=2, coefficient_quantum=ones, kind=name, parts=_taps(name)
        ),
        crop=_crop if name == "conv" else None,
        jvp=biased_jvp(lambda: BY_NAME[name], _spread_bias),
        transpose=_transpose(name),
        decompose=decompose,
    )


READ = _biased("conv", _decompose_read)
WRITE = _biased("conv_transpose", _decompose_write)
WEIGHT_GRAD = Op(
    "conv_weight_grad",
    Convolution,
    types=_types("conv_weight_grad"),
    spec=_spec("conv_weight_grad"),
    batch=_batch,
    linear="each",
    sums=Sums(
        max_roundings=_terms("conv_weight_grad"),
        factors=(0, 1),
        coefficient_quantum=ones,
        kind="conv_weight_grad",
        parts=_taps("conv_weight_grad"),
    ),
    transpose=_transpose("conv_weight_grad"),
    decompose=_decompose_weight_grad,
)
BY_NAME = {op.name: op for op in (READ, WRITE, WEIGHT_GRAD)}
BY_RESULT = {ROLES[op.name][2]: op for op in (READ, WRITE, WEIGHT_GRAD)}


def conv(
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Var:
    """Convolution of ``x (..., C, *spatial)`` with ``weight (M, C / groups, *kernel)``, which fixes the rank.

    Padding is an int, one int or ``(lo, hi)`` per axis, ``"same"`` or ``"valid"``. The kernel is not flipped. Integers
    have 32 or 64 bits, and wrap around.

    >>> conv(np.float32([[1, 2, 3]]), np.float32([[[1, 10]]]), np.float32([100])).tolist()
    [[121.0, 132.0]]
    """
    given = operands(x, weight, *(() if bias is None else (bias,)))
    with applying("conv", *given):
        form = conv_form(*_with_bias(given), stride, padding, dilation, groups)
    return apply(READ, Convolution.of_form(form), *given)


def conv_transpose(
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Var:
    """Transposed convolution of ``x (..., C, *spatial)`` with ``weight (C, M / groups, *kernel)``.

    >>> conv_transpose(np.float32([[1, 2]]), np.float32([[[1, 10]]]), stride=2).tolist()
    [[1.0, 10.0, 2.0, 20.0]]
    """
    given = operands(x, weight, *(() if bias is None else (bias,)))
    with applying("conv_transpose", *given):
        form = transposed_form(*_with_bias(given), stride, padding, output_padding, groups, dilation)
    return apply(WRITE, Convolution.of_form(form), *given)


def _with_bias(given: Sequence[Any]) -> tuple[Any, Any, Any]:
    """x, weight, and the bias or None."""
    x, weight, *bias = given
    return x, weight, bias[0] if bias else None
