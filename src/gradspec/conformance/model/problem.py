"""What a target is asked: an operator on given shapes, in one mode, on given numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Shape: TypeAlias = tuple[int, ...]
Attributes: TypeAlias = Mapping[str, Any]
"""Of an operator, by the names of its specification."""
Results: TypeAlias = dict[str, Array]
"""Arrays by the names of `Problem.results`; a target may leave out what it does not give."""

MODES = ("value", "jvp", "vjp", "second")
NON_CONTIGUOUS = ("non_contiguous", "reversed", "broadcast", "cropped")
"""Ways to lie in memory that leave gaps, go backwards, or come to one place again."""
ON_NANS = "on_nans"
"""The variant of a call in which memory that a library allocates without writing to it is full of NaNs."""
LAYOUTS = ("contiguous", "channels_last", *NON_CONTIGUOUS)
RANKS = (1, 2, 3, 4)
_NUMPY = ("float16", ml_dtypes.bfloat16, "float32", "float64", "int8", "uint8", "int32", "int64")
_NAMES = ("f16", "bf16", "f32", "f64", "i8", "u8", "i32", "i64")
DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(kind) for name, kind in zip(_NAMES, _NUMPY, strict=True)}
FLOATS = ("f16", "bf16", "f32", "f64")
ARRAY_DTYPES = {**DTYPES, "bool": np.dtype(np.bool_)}
"""All dtypes that arrays of a call may have; masks, which some references take, are of none that is judged."""

INPUTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("max_pool", "avg_pool", "smooth_max_pool", "adaptive_max_pool", "adaptive_avg_pool"), ("x",)),
    **dict.fromkeys(("global_max_pool", "global_avg_pool"), ("x",)),
    **dict.fromkeys(("conv", "conv_transpose"), ("x", "weight", "bias")),
    "max_unpool": ("x", "indices"),
    **dict.fromkeys(("unfold", "fold"), ("x",)),
}
"""The operators that are judged, with their inputs as the specification orders them."""

SELECTIONS = ("max_pool", "adaptive_max_pool", "global_max_pool")
"""Operators that choose one of their cells: they take integers, and give indices."""
GIVES_INDICES = SELECTIONS[:2]
"""The selections that take ``return_indices``."""
AVERAGES = ("avg_pool", "adaptive_avg_pool", "global_avg_pool")
SLIDING_POOLS = ("max_pool", "avg_pool", "smooth_max_pool")
CONVOLUTIONS = ("conv", "conv_transpose")
COLUMNS = ("unfold", "fold")
SLIDING = (*SLIDING_POOLS, *CONVOLUTIONS, *COLUMNS)
"""Operators with a kernel that slides, with strides, padding and dilation."""


@dataclass(frozen=True)
class CallSignature:
    """The inputs and results of an operator, or of a reference: a specification that is given as a graph."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    values: tuple[str, ...] = ("y",)
    """Of its results."""
    of: int = 0
    """Which of them derivatives are those of."""
    no_grad: tuple[str, ...] = ()
    """Inputs that have no derivatives, though they are floats."""


@dataclass(frozen=True)
class Problem:
    """All of a call but its numbers: the operator, the shapes and dtype of its inputs, and its settled attributes.

    ``attributes`` are those of ``gs.spec``: one number per axis, padding as pairs, defaults left out or spelled out.
    ``rank`` is the number of spatial axes.
    """

    op: str
    rank: int
    shapes: tuple[Shape | None, ...]
    attributes: Attributes
    dtype: str = "f32"
    signature: CallSignature | None = None
    """Of a reference, whose name ``op`` is then; that of an operator follows from its name."""

    @property
    def is_reference(self) -> bool:
        """Whether a graph is the specification, and not an operator with an oracle of its own."""
        return self.signature is not None

    @cached_property
    def interface(self) -> CallSignature:
        """The inputs and results."""
        return self.signature or _signature_of(self.op, self.dtype)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of all inputs, of which some may be left out."""
        return self.interface.names

    def dtype_of(self, name: str) -> str:
        """The dtype of an input."""
        return self.interface.dtypes[self.inputs.index(name)]

    def named_shapes(self) -> dict[str, Shape]:
        """The shapes of the inputs that are there, by name."""
        named = zip(self.inputs, self.shapes, strict=True)
        return {name: shape for name, shape in named if shape is not None}

    @property
    def x_shape(self) -> Shape:
        """The shape of ``x``, which every problem has."""
        shape = self.shapes[0]
        assert shape is not None
        return shape

    def rank_of(self, ndim: int) -> int:
        """How many of the last axes of an array are space: where nothing says so, all but the first."""
        return 1 if self.op == "fold" else self.rank or max(ndim - 1, 0)  # columns have one axis for all places

    @property
    def spatial(self) -> Shape:
        return self.x_shape[-self.rank :]

    @property
    def lead(self) -> Shape:
        """The axes of ``x`` before channels and space; for pooling, channels are leading axes like others.

        Nothing says which axes of a reference are leading ones: it has none.
        """
        if self.is_reference:
            return ()
        own = 2 if self.op == "fold" else self.rank + (self.op in (*CONVOLUTIONS, "unfold"))
        return self.x_shape[: len(self.x_shape) - own]

    @property
    def keepdims(self) -> bool:
        """Whether spatial axes that are reduced stay, as ones: they do but for a global pooling that drops them."""
        return bool(self.attributes.get("keepdims", True))

    @cached_property
    def differentiable(self) -> tuple[str, ...]:
        """The names of the inputs that are there and have derivatives."""
        fixed = self.interface.no_grad
        return tuple(name for name in self.named_shapes() if self.dtype_of(name) in FLOATS and name not in fixed)

    @property
    def cotangent(self) -> str:
        """What programs call the cotangent."""
        return f"g{_suffix(self.inputs)}"

    def direction(self, name: str) -> str:
        """What programs call the direction of an input."""
        return f"d{name}{_suffix(self.inputs)}"

    def results(self, mode: str) -> tuple[str, ...]:
        """The names of what a mode gives.

        ``second`` is the VJP of the VJP: the cotangents of its inputs and of its cotangent, given one for each result.
        """
        if mode == "value":
            return self.interface.values
        if mode == "jvp":
            return ("dy",)
        if mode == "vjp":
            return tuple(f"grad_{name}" for name in self.differentiable)
        return (*(f"second_{name}" for name in self.differentiable), f"second_{self.cotangent}")


@lru_cache(maxsize=256)
def _signature_of(op: str, dtype: str) -> CallSignature:
    dtypes = tuple("i64" if name == "indices" else dtype for name in INPUTS[op])
    return CallSignature(INPUTS[op], dtypes, ("y", "indices") if op in SELECTIONS else ("y",))


@lru_cache(maxsize=256)
def _suffix(inputs: tuple[str, ...]) -> str:
    """What tells names of cotangents and directions from those of inputs, of which one may be ``g`` or ``dx``.

    >>> _suffix(("x", "weight")), _suffix(("x", "dx")), _suffix(("g", "g_"))
    ('', '_', '__')
    """
    derived, suffix = ("g", *(f"d{name}" for name in inputs)), ""
    while any(f"{name}{suffix}" in inputs for name in derived):
        suffix += "_"
    return suffix


@dataclass(frozen=True)
class Call:
    """A problem with its numbers, in one mode.

    ``directions`` are, one for each differentiable input, the tangents of a JVP, or in mode ``second`` the cotangents
    of the VJP's results. ``layout`` says how the arrays lie in memory; `in_layout` puts them so. ``variant`` names one
    of the target's own ways to make the same call.
    """

    problem: Problem
    mode: str
    inputs: tuple[Array | None, ...]
    directions: tuple[Array, ...] = ()
    cotangent: Array | None = None
    layout: str = "contiguous"
    variant: str = "plain"
    output: Shape = ()
    """The shape of the operator's value."""

    def named(self) -> dict[str, Array]:
        """The inputs that are there, by name."""
        pairs = zip(self.problem.inputs, self.inputs, strict=True)
        return {name: array for name, array in pairs if array is not None}

    def arrays(self) -> dict[str, Array]:
        """Every array by the name that programs give it: ``x``, ``dx`` for a direction, ``g`` for the cotangent."""
        directions = zip(self.problem.differentiable, self.directions, strict=False)
        found = {**self.named(), **{self.problem.direction(name): array for name, array in directions}}
        return found if self.cotangent is None else {**found, self.problem.cotangent: self.cotangent}

    def arguments(self) -> list[Array]:
        """Inputs, the cotangent and directions, in the order in which functions of all of them take them."""
        return [*self.named().values(), *([] if self.cotangent is None else [self.cotangent]), *self.directions]

    def with_arrays(self, arrays: Mapping[str, Array]) -> Call:
        """The same call on other arrays, by the names of `arrays`."""
        inputs = tuple(map(arrays.get, self.problem.inputs))
        along = map(self.problem.direction, self.problem.differentiable)
        directions = tuple(arrays[name] for name in along if name in arrays)
        rest = self.layout, self.variant, self.output
        return Call(self.problem, self.mode, inputs, directions, arrays.get(self.problem.cotangent), *rest)

    def mapped(self, change: Callable[[Array], Array]) -> Call:
        """The same call on changed arrays."""
        return self.with_arrays({name: change(array) for name, array in self.arrays().items()})

    def in_layout(self) -> Call:
        """The call with its arrays in the layout that it names."""
        return self.mapped(lambda array: lay_out(array, self.layout, self.problem.rank_of(array.ndim)))


def why_unspecified(problem: Problem, mode: str) -> str | None:
    """Why the specification says nothing of a problem: only what moves numbers about has integers, and no derivatives.

    >>> why_unspecified(Problem("conv", 1, ((1, 1, 4), (1, 1, 2), None), {}, "i32"), "value")
    'conv has no integers'
    """
    if problem.dtype in FLOATS:
        return None
    if problem.op not in (*SELECTIONS, "max_unpool", *COLUMNS):
        return f"{problem.op} has no integers"
    return None if mode == "value" else "integers have no derivatives"


def lay_out(array: Array, layout: str, rank: int) -> Array:
    """The same numbers in memory of another order: channels fastest, with gaps between all cells, or backwards.

    ``cropped`` is a part of a larger array: rows are as they were, with gaps between them. ``broadcast`` keeps the
    numbers of the first index of a leading axis alone, and repeats them with a stride of 0.

    >>> lay_out(np.zeros((2, 3, 4)), "channels_last", 1).strides, lay_out(np.zeros((4,)), "non_contiguous", 1).strides
    ((96, 8, 24), (16,))
    >>> [lay_out(np.zeros((2, 4)), layout, 1).strides for layout in ("reversed", "broadcast")]
    [(-32, -8), (0, 8)]
    >>> lay_out(np.zeros((2, 4)), "cropped", 1).strides
    (48, 8)
    """
    no_lead = array.ndim <= rank and layout in ("channels_last", "broadcast")
    if layout == "contiguous" or array.size == 0 or array.ndim == 0 or no_lead:
        return np.asarray(array, order="C")
    if layout == "reversed":
        backwards = (slice(None, None, -1),) * array.ndim
        return np.ascontiguousarray(array[backwards])[backwards]
    if layout == "broadcast":
        one = np.array(array[:1], order="C")
        return np.ndarray(array.shape, array.dtype, one, strides=(0, *one.strides[1:]))
    if layout == "channels_last":
        channel = array.ndim - rank - 1
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, channel, -1)), -1, channel)
    if layout == "cropped":
        view = np.zeros(tuple(n + 2 for n in array.shape), array.dtype)[(slice(1, -1),) * array.ndim]
    else:
        view = np.zeros(tuple(2 * n + 1 for n in array.shape), array.dtype)[(slice(1, None, 2),) * array.ndim]
    view[...] = array
    return view
