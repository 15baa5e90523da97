"""Layers of libraries beyond windows. What each means is an expression of ours, whose graph is a reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from threading import Lock
from types import SimpleNamespace
from typing import Any

from gradspec.conformance.model.arithmetic import Arithmetic
from gradspec.conformance.model.problem import FLOATS, Call, Problem
from gradspec.conformance.model.reference import Reference
from gradspec.conformance.model.target import Target
from gradspec.conformance.targets.arrays import LibraryTarget
from gradspec.conformance.targets.program import function_of
from gradspec.graph.types import TensorType, f32, i64
from gradspec.interop import compose
from gradspec.ops import conv, curves, linear, loss, pointwise, pool, reduce, resize, shape
from gradspec.transforms.trace import trace

DTYPES = ("f32", "f16", "bf16", "f64")
"""Those that layers are judged in."""
ROOMS = (linear, reduce, loss, pointwise, resize, shape, curves, conv, pool)
NAMES = (
    "matmul linear batch_norm softmax log_softmax mean sum cumsum cross_entropy resize reshape "
    + "abs gelu silu softplus tanh sigmoid relu conv max_pool"
).split()
GRADSPEC = {name: next(getattr(room, name) for room in ROOMS if hasattr(room, name)) for name in NAMES}
"""What of ``import gradspec as gs`` the expressions use."""


class LibraryLayer:
    """What a layer computes, of inputs by name, and the types that it is judged on first. Sizes differ from each other.

    >>> LAYERS["softmax"].inputs
    ('x',)
    """

    def __init__(self, expression: str, **types: TensorType) -> None:
        self.expression, self.inputs, self.types = expression, tuple(types), tuple(types.values())

    def reference(self, name: str) -> Reference:
        function = function_of(self.expression, self.inputs, {"gs": SimpleNamespace(**GRADSPEC), "compose": compose})
        return Reference(name, lambda types: trace(function, *types), [self.types], dtypes=DTYPES)


_ROWS, _CUBE, _PLANES = f32[5, 9], f32[3, 7, 4], f32[2, 3, 5, 4]
_AFFINE = {"weight": f32[6], "bias": f32[6]}
_HEADS = {"query": f32[2, 3, 5, 4], "key": f32[2, 3, 7, 4], "value": f32[2, 3, 7, 4]}
_IMAGE = {"x": f32[1, 1, 24, 22], "weight": f32[16, 1, 3, 3]}
"""Its rows are pooled in several blocks."""
_CONVOLVED = "gs.relu(gs.conv(x, weight, padding=1))"
_OF_BATCH = "compose.normalized(x, (0, 2), 1e-5, keeps_statistics=True)"
_BY_CHANNEL = f"{_OF_BATCH} * gs.reshape(weight, (-1, 1)) + gs.reshape(bias, (-1, 1))"

LAYERS: dict[str, LibraryLayer] = {
    "conv_pool": LibraryLayer(f"gs.max_pool({_CONVOLVED}, (2, 2), stride=(2, 2))", **_IMAGE),
    "conv_pool kernel=3": LibraryLayer(f"gs.max_pool({_CONVOLVED}, (3, 3), stride=(2, 2))", **_IMAGE),
    "matmul": LibraryLayer("gs.matmul(a, b)", a=f32[5, 6], b=f32[6, 7]),
    "matmul batched": LibraryLayer("gs.matmul(a, b)", a=f32[2, 5, 6], b=f32[2, 6, 7]),
    "linear": LibraryLayer("gs.linear(x, weight, bias)", x=f32[5, 6], weight=f32[7, 6], bias=f32[7]),
    "softmax": LibraryLayer("gs.softmax(x, -1)", x=_ROWS),
    "softmax axis=1": LibraryLayer("gs.softmax(x, 1)", x=_CUBE),
    "log_softmax": LibraryLayer("gs.log_softmax(x, -1)", x=_ROWS),
    "log_softmax axis=1": LibraryLayer("gs.log_softmax(x, 1)", x=_CUBE),
    "logsumexp": LibraryLayer("compose.log_sum_exp(x, (-1,), False)", x=_ROWS),
    "logsumexp keepdims": LibraryLayer("compose.log_sum_exp(x, (0, 2), True)", x=_CUBE),
    "layer_norm": LibraryLayer("compose.layer_norm(x, 1, weight, bias)", x=f32[5, 6], **_AFFINE),
    "layer_norm axes=2": LibraryLayer(
        "compose.layer_norm(x, 2, weight, bias)", x=f32[5, 3, 4], weight=f32[3, 4], bias=f32[3, 4]
    ),
    "group_norm": LibraryLayer("compose.group_norm(x, 2, weight, bias)", x=f32[3, 6, 5], **_AFFINE),
    "group_norm groups=1": LibraryLayer("compose.group_norm(x, 1, weight, bias)", x=f32[3, 6, 5], **_AFFINE),
    "batch_norm": LibraryLayer(
        "gs.batch_norm(x, mean, var, weight, bias)", x=f32[4, 6, 5], **_AFFINE, mean=f32[6], var=f32[6]
    ),
    "batch_norm training": LibraryLayer(_BY_CHANNEL, x=f32[4, 6, 5], **_AFFINE),
    "rms_norm": LibraryLayer("compose.rms_norm(x, 1, weight)", x=f32[5, 6], weight=f32[6]),
    "cross_entropy": LibraryLayer("gs.cross_entropy(x, labels)", x=_ROWS, labels=i64[5]),
    "cross_entropy reduction=none": LibraryLayer('gs.cross_entropy(x, labels, "none")', x=_CUBE, labels=i64[3, 4]),
    "mean": LibraryLayer("gs.mean(x, (-1,))", x=_ROWS),
    "mean keepdims": LibraryLayer("gs.mean(x, (0, 2), True)", x=_CUBE),
    "sum": LibraryLayer("gs.sum(x, (-1,))", x=_ROWS),
    "sum keepdims": LibraryLayer("gs.sum(x, (0, 2), True)", x=_CUBE),
    "var": LibraryLayer("compose.variance(x, (-1,))", x=_ROWS),
    "var correction=0": LibraryLayer("compose.variance(x, (0, 2), 0.0, True)", x=_CUBE),
    "norm": LibraryLayer("compose.norm(x, 2.0, (-1,), False)", x=_ROWS),
    "norm p=1": LibraryLayer("gs.sum(gs.abs(x), (0, 2), True)", x=_CUBE),
    "gelu": LibraryLayer("gs.gelu(x)", x=_ROWS),
    "gelu approximate=tanh": LibraryLayer('gs.gelu(x, "tanh")', x=_ROWS),
    **{name: LibraryLayer(f"gs.{name}(x)", x=_ROWS) for name in ("silu", "softplus", "tanh", "sigmoid")},
    "cumsum": LibraryLayer("gs.cumsum(x, 1)", x=_CUBE),
    "resize mode=nearest": LibraryLayer("gs.resize(x, (7, 9))", x=_PLANES),
    "resize mode=linear": LibraryLayer('gs.resize(x, (2 * x.shape[2], 2 * x.shape[3]), "linear")', x=_PLANES),
    "attention": LibraryLayer("compose.attention(query, key, value)", **_HEADS),
    "attention causal": LibraryLayer("compose.attention(query, key, value, causal=True)", **_HEADS),
}
"""All layers, as reports name them: the name, and what is chosen of it."""
LAYER_NAMES = tuple(dict.fromkeys(name.partition(" ")[0] for name in LAYERS))
"""What ``--ops`` takes: a name stands for all of its rows."""
_MAKING = Lock()


@cache
def _references() -> dict[str, Reference]:
    return {name: layer.reference(name) for name, layer in LAYERS.items()}


def references() -> dict[str, Reference]:
    """The reference of every layer, made once, whichever thread asks first: problems find them by their names."""
    with _MAKING:
        return _references()


def name_of(problem: Problem) -> str:
    """The layer, without what is chosen of it."""
    return problem.op.partition(" ")[0]


class LayeredTarget(Target):
    """A target that is judged on layers beside windows."""

    arithmetics: Mapping[str, Mapping[str, Any]] = {}
    """How the library computes a layer, by its name, where that is not as usual."""

    def __init__(self) -> None:
        super().__init__()
        references()

    @property
    def references(self) -> Sequence[Reference]:
        return tuple(references().values())

    def arithmetic(self, problem: Problem) -> Arithmetic:
        storage = problem.dtype if problem.dtype in FLOATS else "f64"
        return Arithmetic.of(storage, **self.arithmetics.get(name_of(problem), {}))


class WithLayers(LayeredTarget, LibraryTarget):
    """A library whose users write layers as expressions, too."""

    expressions: Mapping[str, str]
    refused: Sequence[tuple[Callable[[Problem, str], bool], str]] = ()
    """What it does not offer of a layer, and why."""

    def expression(self, call: Call) -> str:
        return self.expressions.get(call.problem.op) or super().expression(call)  # type: ignore[safe-super]

    def refusal(self, problem: Problem, mode: str) -> str | None:
        if problem.op not in LAYERS:
            return super().refusal(problem, mode)  # type: ignore[safe-super]
        if problem.op not in self.expressions:
            return f"{self.name} has no function for {problem.op}"
        return next((why for asked, why in self.refused if asked(problem, mode)), None)

    def variants(self, problem: Problem, mode: str) -> tuple[str, ...]:
        return () if problem.op in LAYERS else super().variants(problem, mode)
