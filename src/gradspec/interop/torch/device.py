"""Graphs on tensors in the memory of a GPU: pooling by kernels in Triton, everything else by torch's own operators.

Nothing is copied to the host. What cannot run there raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from gradspec.graph.graph import Graph
from gradspec.graph.ir import Node, Var
from gradspec.interop.extras import require
from gradspec.interop.torch.lower import KEEPS_DTYPE, LOWERINGS, VIEWS
from gradspec.interop.torch.types import tensor_of, torch_dtype
from gradspec.spec.errors import UnsupportedError

if TYPE_CHECKING:
    from gradspec.backends.triton.plans import Operator

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
def _stated_precision() -> Iterator[None]:
    """torch's switches as they are stated here: the precision of float32, small formats added up in float32, and
    algorithms that give the same bits in every run."""
    cudnn, blas = torch.backends.cudnn, torch.backends.cuda.matmul
    wanted = [
        (cudnn.conv, "fp32_precision", _precision),  # type: ignore[attr-defined]
        (blas, "fp32_precision", _precision),
        (blas, "allow_fp16_reduced_precision_reduction", False),
        (blas, "allow_bf16_reduced_precision_reduction", False),
        (cudnn, "deterministic", True),
        (cudnn, "benchmark", False),
    ]
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
        with _stated_precision() if tensors[0].dtype is not torch.float64 else nullcontext():
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
        self.graph, self.device = graph, device
        self.constants = [tensor_of(array).to(device) for array in graph.constants.values()]
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
            function = _function(nodes, self.device)
            found.append(DeviceStep(function, nodes[0].op.name, tuple(inputs), tuple(outputs), tuple(last)))
        return reversed(found)

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
