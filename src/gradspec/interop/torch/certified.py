"""Graphs on a device for bounds, by operators whose errors are within those that bounds assume (docs/bounds.md).

torch's operators are, with these exceptions. cuDNN chooses the algorithm of a **convolution** by its sizes; Winograd's
and those by FFTs add up differences of other cells, whose rounding is not bounded by the sizes of the products: so
windows are laid out as columns, and multiplied as matrices. **Products** of float32 never use TF32, whatever is set.
**Elementary functions** of float32, some of which err by 8 units, are computed in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradspec.backends.xp.windows import add_bias
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array
from gradspec.graph.show import distinct
from gradspec.interop.torch import device as devices
from gradspec.interop.torch.device import DeviceProgram, Function, Nodes, stated_precision
from gradspec.interop.torch.types import array_of, tensor_of
from gradspec.ops.conv import Convolution
from gradspec.spec.errors import UnsupportedError

FUNCTIONS = frozenset(
    (
        *("exp", "log", "sqrt", "tanh", "sin", "cos", "atan", "erf", "normal_cdf", "normal_density", "abs_power"),
        *("sigmoid", "softplus", "silu", "gelu", "softmax", "log_softmax"),
        *("lp_pool", "smooth_max_pool", "smooth_max_mean", "smooth_max_spread"),
    )
)
"""Operators that are made of elementary functions."""


# --- convolutions as products of matrices -----------------------------------------------------------------------------
#
# ``(samples, groups, channels of one group · taps, windows)`` are the columns, and ``(groups, rows, channels of one
# group · taps)`` the weights.


def _weights(attrs: Convolution, w: Tensor) -> Tensor:
    return w.reshape(attrs.groups, w.shape[0] // attrs.groups, w.shape[1] * prod(attrs.kernel))


def _columns(attrs: Convolution, x: Tensor) -> Tensor:
    lead, channels = x.shape[: x.ndim - attrs.rank - 1], x.shape[x.ndim - attrs.rank - 1]
    rows = channels // attrs.groups * prod(attrs.kernel)
    return devices.unfold(attrs, x).reshape(prod(lead), attrs.groups, rows, prod(attrs.outputs))


def _rows(attrs: Convolution, g: Tensor) -> Tensor:
    """Results, or their cotangents, as columns of rows."""
    at = g.ndim - attrs.rank - 1
    return g.reshape(prod(g.shape[:at]), attrs.groups, g.shape[at] // attrs.groups, prod(attrs.outputs))


def _multiply(w: Tensor, columns: Tensor) -> Tensor:
    """For every sample; with one group, those of all samples side by side are one matrix."""
    if len(w) > 1:
        return torch.matmul(w, columns)
    samples, _, terms, windows = columns.shape
    matrix = columns[:, 0].transpose(0, 1).reshape(terms, samples * windows)
    return torch.matmul(w[0], matrix).reshape(w.shape[1], samples, windows).transpose(0, 1)[:, None]


def _conv(attrs: Convolution, x: Tensor, w: Tensor, *bias: Tensor) -> Tensor:
    y = _multiply(_weights(attrs, w), _columns(attrs, x))
    lead = x.shape[: x.ndim - attrs.rank - 1]
    return add_bias(attrs, y.reshape(*lead, w.shape[0], *attrs.outputs), bias)


def _conv_transpose(attrs: Convolution, g: Tensor, w: Tensor, *bias: Tensor) -> Tensor:
    lead, channels = g.shape[: g.ndim - attrs.rank - 1], w.shape[1] * attrs.groups
    columns = _multiply(_weights(attrs, w).mT, _rows(attrs, g))
    folded = devices.fold(attrs, columns.reshape(*lead, channels * prod(attrs.kernel), prod(attrs.outputs)))
    return add_bias(attrs, folded, bias)


def _conv_weight_grad(attrs: Convolution, x: Tensor, g: Tensor) -> Tensor:
    columns, rows = (t.permute(1, 2, 0, 3).flatten(2) for t in (_columns(attrs, x), _rows(attrs, g)))
    at = x.ndim - attrs.rank - 1
    return torch.matmul(rows, columns.mT).reshape(g.shape[at], x.shape[at] // attrs.groups, *attrs.kernel)


PRODUCTS: dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "conv_weight_grad": _conv_weight_grad,
    "matmul": devices.LOWERINGS["matmul"],
}


# --- graphs -----------------------------------------------------------------------------------------------------------


class SharedConstants(dict[Any, Tensor]):
    """Constants on a device, where those that are equal, such as the weights in many graphs, lie once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(self, array: Array) -> Tensor:
        cells = np.asarray(distinct(array))
        key = array.dtype, array.shape, cells.shape, cells.tobytes()
        if key not in self:
            self[key] = tensor_of(cells).to(self._device).expand(array.shape)
        return self[key]


class CertifiedProgram(DeviceProgram):
    """A graph of bounds as a function of arrays and of tensors on one device."""

    def __init__(self, graph: Graph, device: torch.device, constants: SharedConstants) -> None:
        self.constant = constants  # type: ignore[method-assign]
        super().__init__(graph, device)

    def function(self, nodes: Nodes) -> Function:
        (node, *_) = nodes
        if node.op.name in PRODUCTS:
            product, attrs = PRODUCTS[node.op.name], node.attrs
            return lambda *tensors: (product(attrs, *tensors),)
        function = super().function(nodes)
        return _widened(function) if FUNCTIONS.intersection(node.op.name for node in nodes) else function


def _widened(function: Function) -> Function:
    """Floats of float32, the first of which is an operand, computed in float64 and rounded once."""

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        wide = [t.double() if t.dtype is torch.float32 else t for t in tensors]
        return tuple(r.to(tensors[0].dtype) for r in function(*wide))

    return run


class DeviceCompiler:
    """Makes functions of graphs of bounds as ``gs.compile`` does, which run on a device."""

    def __init__(self, device: str) -> None:
        try:
            self._device = torch.empty(0, device=device).device
        except (AssertionError, RuntimeError) as error:
            raise UnsupportedError(f"PyTorch has no device {device!r} here: {error}; leave out device=") from error
        self._constants = SharedConstants(self._device)

    def compile(self, graph: Graph, stays: bool = False) -> Callable[..., Any]:
        """A function of arrays, and of tensors that are there; its results are arrays, unless they stay there."""
        program = CertifiedProgram(graph.simplify(), self._device, self._constants)

        def run(*operands: Array | Tensor) -> Any:
            tensors = [a if isinstance(a, Tensor) else tensor_of(a).to(self._device) for a in operands]
            with stated_precision("ieee"), torch.no_grad(), torch.autocast(self._device.type, enabled=False):
                results = program(tensors)
            found = results if stays else tuple(np.array(array_of(t.cpu())) for t in results)
            return found[0] if len(found) == 1 else found

        return run
