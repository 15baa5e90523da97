"""Graphs on tensors in the memory of a GPU: pooling by kernels in Triton, everything else by torch's own operators.

Nothing is copied to the host. What cannot run there raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from math import pi, prod, sqrt
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from gradspec.backends.xp import lowerings
from gradspec.backends.xp.namespace import Namespace
from gradspec.backends.xp.windows import add_bias, as_samples, extents, unit_axis
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Node, Var
from gradspec.graph.types import STORED, DType, bf16, f16
from gradspec.interop.extras import require
from gradspec.interop.torch.types import tensor_of, torch_dtype
from gradspec.ops.conv import Convolution, StatedWindows
from gradspec.ops.layout import Padding, Slices
from gradspec.spec.errors import UnsupportedError
from gradspec.spec.layout import spaced_sizes
from gradspec.transforms.copy import expand

if TYPE_CHECKING:
    from gradspec.backends.triton.plans import Operator

# --- operators as torch's own -----------------------------------------------------------------------------------------
#
# A lowering is a function of the node's attribute record and its operands, tensors of any device. The small formats
# arrive as float32 where numbers are computed, and their results are rounded once; the operators of ``KEEPS_DTYPE``
# take them as they are. Pooling is not here: its kernels are ``gradspec.backends.triton``.

MOST_AXES = 3
"""Spatial axes of torch's convolutions."""


class TorchNamespace(Namespace):
    permute_dims = staticmethod(torch.permute)
    repeat = staticmethod(torch.repeat_interleave)
    take_along_axis = staticmethod(torch.take_along_dim)

    def dtype(self, dtype: DType) -> torch.dtype:
        return torch_dtype(dtype)

    def cast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(dtype)

    def is_float(self, x: Tensor) -> bool:
        return x.is_floating_point()

    def rounds_twice(self, x: Tensor, dtype: DType) -> bool:
        return dtype in (f16, bf16, *STORED) and x.dtype in (torch.float64, torch.int32, torch.int64)

    def trunc_divide(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.div(a, b, rounding_mode="trunc")

    def normal_cdf(self, x: Tensor) -> Tensor:
        """In float64: a rounding of the argument would cost as many as its square in the tail."""
        return (torch.erfc(x.double() * -sqrt(0.5)) / 2).to(x.dtype)

    def normal_density(self, x: Tensor) -> Tensor:
        wide = x.double()
        return (torch.exp(wide * wide * -0.5) * (1 / sqrt(2 * pi))).to(x.dtype)

    def sum(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        return torch.sum(x, axes, dtype=x.dtype) if axes else x

    def cumsum(self, x: Tensor, axis: int) -> Tensor:
        return torch.cumsum(x, axis, dtype=x.dtype) + 0  # from 0 on: 0 + −0 is 0

    def matmul(self, a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
        return torch.matmul(a.mT if transpose_a else a, b.mT if transpose_b else b)

    def zeros(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return like.new_zeros(shape)

    def add_rows(self, size: int, places: Tensor, rows: Tensor) -> Tensor:
        """``index_put_`` sorts what meets in one place first: the same bits come out of every run."""
        y = rows.new_zeros(size, *rows.shape[1:])
        return y.index_put_((places,), rows, accumulate=True)

    def put_rows(self, x: Tensor, places: Tensor, rows: Tensor) -> Tensor:
        """Each place takes the largest number of the rows that name it."""
        if not places.numel():
            return x
        numbers = torch.arange(places.numel(), device=x.device)
        last = torch.full((len(x),), -1, device=x.device).scatter_reduce_(0, places, numbers, "amax")
        return torch.where((last >= 0).reshape(-1, *(1,) * (x.ndim - 1)), rows[last.clamp(min=0)], x)

    def put_along_axis(self, x: Tensor, places: Tensor, values: Tensor, axis: int) -> None:
        x.scatter_(axis, places, values)


TORCH = TorchNamespace(torch)


# --- layout -----------------------------------------------------------------------------------------------------------


def _slice(attrs: Slices, x: Tensor) -> Tensor:
    """torch steps forwards only: an axis that is read backwards is turned first."""
    for axis, (start, size, step) in enumerate(zip(attrs.starts, attrs.sizes, attrs.steps, strict=True)):
        if step < 0:
            x, start, step = x.flip(axis), x.shape[axis] - 1 - start, -step
        x = x.narrow(axis, start, (size - 1) * step + 1 if size else 0)
        x = x[(slice(None),) * axis + (slice(None, None, step),)]
    return x


def _pad(attrs: Padding, x: Tensor) -> Tensor:
    """What reaches beyond the result, where padding is negative, is cut off."""
    steps = [gap + 1 for gap in attrs.interior]
    wide = [(max(n - 1, 0) * s + 1 if n else 0) for n, s in zip(x.shape, steps, strict=True)]
    spaced = torch.full(wide, attrs.value, dtype=x.dtype, device=x.device)
    spaced[tuple(slice(None, None, s) for s in steps)] = x
    ends = [n for pair in reversed(attrs.padding) for n in pair]
    shape = spaced_sizes(x.shape, attrs.padding, attrs.interior)
    return torch.constant_pad_nd(spaced, ends, attrs.value).reshape(shape)


# --- convolution ------------------------------------------------------------------------------------------------------


def _pad_or_crop(x: Tensor, ends: list[tuple[int, int]]) -> Tensor:
    """Zeros laid around the last axes, or cells cut off where a number is negative."""
    return torch.constant_pad_nd(x, [n for pair in reversed(ends) for n in pair]) if any(map(any, ends)) else x


def _require_samples(attrs: Convolution, x: Tensor) -> Tensor:
    if attrs.rank > MOST_AXES:
        raise UnsupportedError(
            f"a convolution over {attrs.rank} spatial axes cannot run on {x.device}: torch has kernels for {MOST_AXES} "
            "at most; move its operands to the CPU, where gradspec has its own"
        )
    return as_samples(attrs, x)


def _settings(attrs: Convolution) -> tuple[Any, ...]:
    one = unit_axis(attrs)
    rank = attrs.rank + len(one)
    return [*attrs.stride, *one], [0] * rank, [*attrs.dilation, *one], False, [0] * rank, attrs.groups


def _conv(attrs: Convolution, x: Tensor, w: Tensor, *bias: Tensor) -> Tensor:
    shape = (*x.shape[: x.ndim - attrs.rank - 1], w.shape[0], *attrs.outputs)
    if not x.numel() or not w.numel():
        return add_bias(attrs, x.new_zeros(shape), bias)
    cells = _pad_or_crop(_require_samples(attrs, x), extents(attrs) + [(0, 0)] * len(unit_axis(attrs)))
    y: Tensor = torch.ops.aten.convolution(cells, w.reshape(*w.shape, *unit_axis(attrs)), None, *_settings(attrs))
    return add_bias(attrs, y.reshape(shape), bias)


def _convolve_backward(attrs: Convolution, g: Tensor, x: Tensor, w: Tensor, of_input: bool) -> Tensor:
    """What torch sends back to ``x`` or to ``w``, of which it needs the other one, and of this one the shape."""
    wanted = [of_input, not of_input, False]
    found = torch.ops.aten.convolution_backward(
        _require_samples(attrs, g), x, w.reshape(*w.shape, *unit_axis(attrs)), None, *_settings(attrs), wanted
    )
    return found[0 if of_input else 1]  # type: ignore[no-any-return]


def _conv_transpose(attrs: Convolution, g: Tensor, w: Tensor, *bias: Tensor) -> Tensor:
    lead, channels = g.shape[: g.ndim - attrs.rank - 1], w.shape[1] * attrs.groups
    shape = (*lead, channels, *attrs.sizes)
    if not g.numel() or not w.numel():
        return add_bias(attrs, g.new_zeros(shape), bias)
    ends = extents(attrs)
    sizes = [n + lo + hi for n, (lo, hi) in zip(attrs.sizes, ends, strict=True)]
    x = _convolve_backward(attrs, g, g.new_empty(prod(lead), channels, *sizes, *unit_axis(attrs)), w, of_input=True)
    cells = x.reshape(prod(lead), channels, *sizes)
    return add_bias(attrs, _pad_or_crop(cells, [(-lo, -hi) for lo, hi in ends]).reshape(shape), bias)


def _conv_weight_grad(attrs: Convolution, x: Tensor, g: Tensor) -> Tensor:
    at = x.ndim - attrs.rank - 1
    shape = (g.shape[at], x.shape[at] // attrs.groups, *attrs.kernel)
    if not x.numel() or not g.numel():
        return x.new_zeros(shape)
    cells = _pad_or_crop(_require_samples(attrs, x), extents(attrs) + [(0, 0)] * len(unit_axis(attrs)))
    return _convolve_backward(attrs, g, cells, x.new_empty(shape), of_input=False).reshape(shape)


# --- windows as columns -----------------------------------------------------------------------------------------------


def _taps(attrs: StatedWindows) -> list[tuple[Any, ...]]:
    """For every tap of a window, the cells that all windows read by it, from where the first window begins."""
    places: list[tuple[Any, ...]] = [(...,)]
    for k, s, d, o in zip(attrs.kernel, attrs.stride, attrs.dilation, attrs.outputs, strict=True):
        places = [(*before, slice(t * d, t * d + (o - 1) * s + 1, s)) for before in places for t in range(k)]
    return places


def unfold(attrs: StatedWindows, x: Tensor) -> Tensor:
    """``(*lead, C, *sizes)`` to ``(*lead, C·taps, windows)``."""
    *lead, channels = x.shape[: x.ndim - attrs.rank]
    cells = _pad_or_crop(x, extents(attrs))
    columns = torch.stack([cells[tap] for tap in _taps(attrs)], len(lead) + 1)
    return columns.reshape(*lead, channels * prod(attrs.kernel), prod(attrs.outputs))


def fold(attrs: StatedWindows, x: Tensor) -> Tensor:
    *lead, rows, _ = x.shape
    channels, ends = rows // prod(attrs.kernel), extents(attrs)
    columns = x.reshape(*lead, channels, prod(attrs.kernel), *attrs.outputs)
    y = x.new_zeros(*lead, channels, *(n + lo + hi for n, (lo, hi) in zip(attrs.sizes, ends, strict=True)))
    for t, tap in enumerate(_taps(attrs)):
        y[tap] += columns.select(len(lead) + 1, t)
    return _pad_or_crop(y, [(-lo, -hi) for lo, hi in ends])


LOWERINGS: dict[str, Callable[..., Any]] = {
    **lowerings(TORCH),
    "slice": _slice,
    "pad": _pad,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "conv_weight_grad": _conv_weight_grad,
    "unfold": unfold,
    "fold": fold,
}

KEEPS_DTYPE = frozenset(
    (
        *("broadcast_to", "concat", "convert", "detach", "pad", "reshape", "slice", "transpose", "unfold"),
        *("equal", "gather_rows", "greater", "max_gather", "put_label", "scatter_rows", "take_label", "top_places"),
        *("where", "conv", "conv_weight_grad", "conv_transpose", "matmul"),
    )
)
"""Operators that move numbers or compare them, and those of which torch's kernels add up small formats in float32."""

VIEWS = frozenset(("broadcast_to", "convert", "detach", "reshape", "slice", "transpose"))
"""Operators whose results may lie in the memory of their operands."""


# --- graphs on a device -----------------------------------------------------------------------------------------------


DEVICES = {"cuda"}
"""The kinds of devices whose tensors run here. Triton's interpreter takes CPU tensors, so that tests add ``"cpu"``."""

POOLING = frozenset(
    (
        *("max_pool", "max_pool_gather", "max_pool_scatter", "avg_pool", "avg_pool_transpose", "lp_pool"),
        *("smooth_max_pool", "smooth_max_mean", "smooth_max_spread"),
    )
)
PAIRS = {"max_pool_gather": "max_pool", "smooth_max_mean": "smooth_max_pool"}
"""Tangents, and the values that are found with them at once."""
PRODUCTS = frozenset(("conv", "conv_transpose", "conv_weight_grad", "matmul"))
_SMALL = (torch.float16, torch.bfloat16)

Function = Callable[..., Any]


def is_there(tensor: Any) -> bool:
    """Whether a tensor lies where graphs run here."""
    return tensor.is_cuda or tensor.device.type in DEVICES  # which takes longer


# --- precision --------------------------------------------------------------------------------------------------------

PRECISIONS = ("ieee", "tf32")
_precision = PRECISIONS[0]
_switching = RLock()


def set_float32_precision(name: str) -> None:
    """How products of float32 are computed on a GPU by graphs: ``"ieee"``, as elsewhere, or ``"tf32"``, whose factors
    have 11 bits. What torch is set to, for its own operators, makes no difference, and is not changed.

    >>> set_float32_precision("tf32")
    >>> get_float32_precision()
    'tf32'
    >>> set_float32_precision("ieee")
    """
    global _precision
    if name not in PRECISIONS:
        raise ValueError(f"there is no precision {name!r}; use {' or '.join(map(repr, PRECISIONS))}")
    _precision = name


def get_float32_precision() -> str:
    """The precision of products of float32 on a GPU.

    >>> get_float32_precision()
    'ieee'
    """
    return _precision


@contextmanager
def stated_precision(precision: str | None = None) -> Iterator[None]:
    """torch's switches as they are stated here: the precision of float32, small formats added up in float32, and
    algorithms that give the same bits in every run. They are the process's, so one thread at a time sets them."""
    cudnn, blas, stated = torch.backends.cudnn, torch.backends.cuda.matmul, precision or _precision
    wanted = [
        (cudnn.conv, "fp32_precision", stated),  # type: ignore[attr-defined]
        (blas, "fp32_precision", stated),
        (blas, "allow_fp16_reduced_precision_reduction", False),
        (blas, "allow_bf16_reduced_precision_reduction", False),
        (cudnn, "deterministic", True),
        (cudnn, "benchmark", False),
    ]
    with _switching:
        before = [(place, name, getattr(place, name)) for place, name, _ in wanted]
        try:
            for place, name, value in wanted:
                setattr(place, name, value)
            yield
        finally:
            for place, name, value in before:
                setattr(place, name, value)


# --- operators --------------------------------------------------------------------------------------------------------


Nodes = tuple[Node, ...]
"""One, or a value and its tangent."""


def _paired(nodes: Sequence[Node]) -> list[Nodes]:
    """All nodes in order; neighbours that are a value and its tangent as a pair."""
    found: list[Nodes] = []
    for node in nodes:
        pair = _pair(*found[-1], node) if found else None
        found[-1:] = [*found[-1:], (node,)] if pair is None else [pair]
    return found


def _pair(*nodes: Node) -> Nodes | None:
    value, tangent = sorted(nodes, key=lambda node: node.op.name in PAIRS)[:2]
    is_both = len(nodes) == 2 and PAIRS.get(tangent.op.name) == value.op.name and tangent.attrs == value.attrs
    is_ready = is_both and tangent.inputs[0] is value.inputs[0] and tangent.inputs[1] is not value.outputs[0]
    return (value, tangent) if is_ready else None


def pooling_operator(nodes: Nodes, device: torch.device) -> Operator:
    if device.type == "cuda":
        require("triton", f"{nodes[0].op} on {device}")
    from gradspec.backends.triton.pool import kernel  # which needs Triton

    return kernel(" and ".join(node.op.name for node in nodes), nodes[0].attrs)


def _function(nodes: Nodes, device: torch.device) -> Function:
    """Nodes as a function of tensors."""
    node = nodes[0]
    if node.op.name in POOLING:
        return pooling_operator(nodes, device)
    if node.op.name not in LOWERINGS:
        raise UnsupportedError(
            f"{node.op} cannot run on {device}: there is no kernel for it there; move the tensors with .cpu()"
        )
    lowering, takes_small = LOWERINGS[node.op.name], node.op.name in KEEPS_DTYPE
    dtypes = [torch_dtype(v.dtype) for v in node.outputs]

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = tensors if takes_small else [t.float() if t.dtype in _SMALL else t for t in tensors]
        results = lowering(node.attrs, *given)
        several = results if isinstance(results, tuple) else (results,)
        return tuple([r if r.dtype is d else r.to(d) for r, d in zip(several, dtypes, strict=True)])

    return run if node.op.name not in PRODUCTS or device.type != "cuda" else _precisely(run)


def _precisely(function: Function) -> Function:
    def run(*tensors: Tensor) -> Any:
        with stated_precision() if tensors[0].dtype is not torch.float64 else nullcontext():
            return function(*tensors)

    return run


# --- graphs -----------------------------------------------------------------------------------------------------------


class DeviceStep(NamedTuple):
    function: Function
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    last: tuple[int, ...]
    """Values that nothing reads afterwards."""


class DeviceProgram:
    """A graph as a function of tensors on one device."""

    def __init__(self, graph: Graph, device: torch.device) -> None:
        self.graph, self.device = (graph := expand(graph)), device
        self.constants = [*map(self.constant, graph.constants.values())]
        numbers: dict[Var, int] = {}
        for var in (*graph.inputs, *graph.constants, *(v for node in graph.nodes for v in node.outputs)):
            numbers.setdefault(var, len(numbers))
        self.count, self.outputs = len(numbers), [numbers[v] for v in graph.outputs]
        self.steps = [*self._steps(numbers)]
        self.may_share = _may_share(graph)
        self.pools = only_pooling(graph) is not None

    def _steps(self, numbers: dict[Var, int]) -> Iterator[DeviceStep]:
        kept, found = {*self.outputs, *range(len(self.graph.inputs) + len(self.constants))}, []
        for nodes in reversed(_paired(self.graph.nodes)):
            inputs, outputs = [numbers[v] for v in nodes[-1].inputs], [numbers[v] for n in nodes for v in n.outputs]
            last = {*inputs, *outputs} - kept
            kept |= last
            function = self.function(nodes)
            found.append(DeviceStep(function, nodes[0].op.name, tuple(inputs), tuple(outputs), tuple(last)))
        return reversed(found)

    def constant(self, array: Array) -> Tensor:
        """A constant on the device."""
        return tensor_of(array).to(self.device)

    def function(self, nodes: Nodes) -> Function:
        """Nodes as a function of tensors."""
        return _function(nodes, self.device)

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The outputs, in memory of their own."""
        if self.pools and len(tensors) == 1:
            return self.steps[0].function(*tensors)  # type: ignore[no-any-return]
        for var, tensor in zip(self.graph.inputs, tensors, strict=True):
            if tensor.device != self.device:
                _elsewhere(var, tensor, self.device)
        values: list[Any] = [*tensors, *self.constants]
        values += [None] * (self.count - len(values))
        for function, name, inputs, outputs, last in self.steps:
            try:
                results = function(*[values[i] for i in inputs])
            except (NotImplementedError, RuntimeError) as error:
                raise _refused(name, error, self.device) from error
            for i, result in zip(outputs, results, strict=True):
                values[i] = result
            for i in last:
                values[i] = None
        results = [values[i] for i in self.outputs]
        return tuple(_apart(results, [*tensors, *self.constants]) if self.may_share else results)


def only_pooling(graph: Graph) -> Node | None:
    """The one node of the graph, if it is that and pools."""
    node = graph.nodes[0] if len(graph.nodes) == 1 else None
    is_whole = node is not None and (node.inputs, node.outputs) == (graph.inputs, graph.outputs)
    return node if is_whole and node.op.name in POOLING else None  # type: ignore[union-attr]


def _elsewhere(var: Var, tensor: Tensor, device: torch.device) -> None:
    raise UnsupportedError(
        f"input {var!r} was given a tensor on {tensor.device}, and another is on {device}; move one of them with .to()"
    )


def _refused(name: str, error: Exception, device: torch.device) -> Exception:
    """What torch has no kernel for, as an error of ours; its other errors stay as they are."""
    is_theirs = not isinstance(error, UnsupportedError)
    if is_theirs and (isinstance(error, NotImplementedError) or "not implemented" in str(error)):
        return UnsupportedError(f"{name} cannot run on {device}: {error}; move the tensors with .cpu()")
    return error


def _may_share(graph: Graph) -> bool:
    """Whether an output may lie in the memory of an input, a constant or another output."""
    views = {v for node in graph.nodes if node.op.name in VIEWS for v in node.outputs}
    places = {*graph.inputs, *graph.constants, *views}
    return any(v in places for v in graph.outputs) or len({*graph.outputs}) < len(graph.outputs)


def _apart(results: Sequence[Tensor], others: Sequence[Tensor]) -> Iterator[Tensor]:
    taken = {t.untyped_storage()._cdata for t in others}
    for result in results:
        is_shared = 0 in result.stride() or result.untyped_storage()._cdata in taken
        own = result.clone(memory_format=torch.contiguous_format) if is_shared else result
        taken.add(own.untyped_storage()._cdata)
        yield own
