"""The model that is being written: names, constants, and nodes of few kinds; and the emitters by operator name.

An operator without an emitter, or one that its emitter declines, is written as what it decomposes into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from gradspec.graph.builder import Builder
from gradspec.graph.ir import Node
from gradspec.graph.show import distinct
from gradspec.interop.onnx.files import tensor_dtype
from gradspec.ops.core import decomposed
from gradspec.transforms.simplify import simplify

Array = NDArray[Any]
DType = np.dtype[Any]
Shape = tuple[int, ...]

BOOL, INT32, INT64, UINT64 = (np.dtype(t) for t in (bool, np.int32, np.int64, np.uint64))
NARROW = (np.dtype(np.int8), np.dtype(np.uint8))
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)

TRUTHS = {"And", "Equal", "Greater", "IsInf", "IsNaN", "Less", "Not", "Or"}
"""Operators whose cells are true or false."""


@dataclass(frozen=True)
class OnnxValue:
    """A tensor of the model that is being written."""

    name: str
    shape: Shape
    dtype: DType

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype.kind not in "iub"


NONE = OnnxValue("", (), BOOL)
"""An input that is left out."""

Operand = OnnxValue | float
"""A value, or a number that takes the dtype of a value beside it."""


class Emitter:
    """Collects the nodes and constants of a model."""

    def __init__(self, taken: Iterable[str], *, nan_safe: bool) -> None:
        """``taken``: names that the graph's variables have. ``nan_safe``: rely on no operator's treatment of NaN."""
        self.nan_safe = nan_safe
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._taken = set(taken)
        self._constants: dict[tuple[DType, Shape, bytes], OnnxValue] = {}
        self._sources: dict[str, OnnxValue] = {}
        self._centred: dict[str, tuple[OnnxValue, OnnxValue | None]] = {}
        self._turned: dict[str, tuple[OnnxValue, Sequence[int]]] = {}
        self._places: set[str] = set()
        self._stem = ""

    # --- names -----------------------------------------------------------------------------------------------------

    def within(self, stem: str) -> None:
        """Name what follows after ``stem``."""
        self._stem = stem

    def unused(self, name: str) -> str:
        """``name``, with a number if it is taken."""
        free, count = name, 0
        while free in self._taken:
            count += 1
            free = f"{name}_{count}"
        self._taken.add(free)
        return free

    def rename(self, begin: int, value: OnnxValue, name: str) -> OnnxValue:
        """``value`` under ``name``: in the nodes from ``begin`` on, or by an Identity if none of them gives it."""
        written = self.nodes[begin:]
        if not any(value.name in node.output for node in written):
            self.nodes.append(helper.make_node("Identity", [value.name], [name], name=name))
            written = []
        for node in written:
            for field in (node.input, node.output):
                for i, entry in enumerate(field):
                    if entry == value.name:
                        field[i] = name
        memories: tuple[dict[str, Any], ...] = (self._sources, self._centred, self._turned)
        for memory in memories:
            if value.name in memory:
                memory[name] = memory[value.name]
        return OnnxValue(name, value.shape, value.dtype)

    def drop_unused(self, outputs: Iterable[str]) -> None:
        """Leave out what no output depends on."""
        used, kept = set(outputs), []
        for node in reversed(self.nodes):
            if used.intersection(node.output):
                kept.append(node)
                used.update(node.input)
        self.nodes = kept[::-1]
        self.initializers = [tensor for tensor in self.initializers if tensor.name in used]

    # --- nodes and constants ---------------------------------------------------------------------------------------

    def node(
        self, op_type: str, inputs: Sequence[OnnxValue], shape: Shape, dtype: DType, **attributes: Any
    ) -> OnnxValue:
        """A node with one output of the given type."""
        (value,) = self.several(op_type, inputs, [(shape, dtype)], **attributes)
        return value

    def several(
        self, op_type: str, inputs: Sequence[OnnxValue], types: Sequence[tuple[Shape, DType]], **attributes: Any
    ) -> tuple[OnnxValue, ...]:
        """A node with outputs of the given types."""
        name = self.unused(f"{self._stem}/{op_type}")
        names = [name, *(self.unused(f"{name}.{i}") for i in range(1, len(types)))]
        self.nodes.append(helper.make_node(op_type, [v.name for v in inputs], names, name=name, **attributes))
        return tuple(OnnxValue(n, shape, dtype) for n, (shape, dtype) in zip(names, types, strict=True))

    def constant(self, array: Any, dtype: Any = None) -> OnnxValue:
        """A small constant; equal ones are written once."""
        cells = np.asarray(array, dtype)
        key = (cells.dtype, cells.shape, cells.tobytes())
        if key not in self._constants:
            value = self._constants[key] = self.initializer(self.unused("constant"), cells)
            self._places |= {value.name} if cells.dtype == INT64 and (cells >= 0).all() else set()
        return self._constants[key]

    def initializer(self, name: str, array: Array) -> OnnxValue:
        """A constant of that name."""
        cells = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        tensor = TensorProto(name=name, dims=array.shape, data_type=tensor_dtype(array.dtype), raw_data=cells)
        self.initializers.append(tensor)
        return OnnxValue(name, array.shape, array.dtype)

    def indices(self, numbers: Any) -> OnnxValue:
        """Sizes, axes or places, as ONNX takes them."""
        return self.constant(np.asarray(numbers, np.int64))

    def full(self, shape: Shape, number: float, dtype: DType) -> OnnxValue:
        """``number`` in every cell, however many there are."""
        return self.expand(self.constant(number, dtype), shape)

    # --- cell by cell ----------------------------------------------------------------------------------------------

    def cells(self, op_type: str, *operands: Operand, **attributes: Any) -> OnnxValue:
        """A pointwise node; shapes broadcast, and numbers take the dtype of the last value."""
        dtype = [v for v in operands if isinstance(v, OnnxValue)][-1].dtype
        values = [v if isinstance(v, OnnxValue) else self.constant(v, dtype) for v in operands]
        shape = np.broadcast_shapes(*(v.shape for v in values))
        # What was expanded only to have the same shape, as it was before: ONNX broadcasts by itself.
        sources = [self._sources.get(v.name, v) for v in values]
        values = sources if np.broadcast_shapes(*(v.shape for v in sources)) == shape else values
        return self.node(op_type, values, shape, BOOL if op_type in TRUTHS else dtype, **attributes)

    def centred(self, x: OnnxValue) -> tuple[OnnxValue, OnnxValue | None] | None:
        """The 8-bit integers that ``x`` was made of, and the zero point taken from them, if any; None if it was not."""
        return self._centred.get(x.name)

    def difference(self, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        """``a − b``, which remembers integers and a zero point of one dtype."""
        y, pair = self.cells("Sub", a, b), [self.centred(self._sources.get(v.name, v)) for v in (a, b)]
        match pair:
            case [(q, None), (zero, None)] if q.dtype == zero.dtype and q.shape == y.shape:
                self._centred[y.name] = q, zero
        return y

    def choose(self, condition: OnnxValue, chosen: float, other: float, dtype: DType) -> OnnxValue:
        """One of two numbers, as ``condition`` says."""
        return self.cells("Where", condition, self.constant(chosen, dtype), self.constant(other, dtype))

    def cast(self, x: OnnxValue, dtype: DType) -> OnnxValue:
        if x.dtype == dtype:
            return x
        y = self.node("Cast", [x], x.shape, dtype, to=tensor_dtype(dtype))
        if x.name in self._sources:
            self._sources[y.name] = self.cast(self._sources[x.name], dtype)
        if x.dtype in NARROW and dtype == INT32:
            self._centred[y.name] = x, None
        return y

    # --- layout ----------------------------------------------------------------------------------------------------

    def reshape(self, x: OnnxValue, shape: Shape) -> OnnxValue:
        return x if x.shape == shape else self.node("Reshape", [x, self.indices(shape)], shape, x.dtype)

    def transpose(self, x: OnnxValue, axes: Sequence[int]) -> OnnxValue:
        """Two in a row are one."""
        source, before = self.unturned(x)
        order = [before[a] for a in axes]
        if order == [*range(x.ndim)]:
            return source
        y = self.node("Transpose", [source], tuple(source.shape[a] for a in order), x.dtype, perm=order)
        self._turned[y.name] = source, order
        return y

    def unturned(self, x: OnnxValue) -> tuple[OnnxValue, Sequence[int]]:
        """What ``x`` was before its axes were put in another order, and that order."""
        return self._turned.get(x.name, (x, range(x.ndim)))

    def expand(self, x: OnnxValue, shape: Shape) -> OnnxValue:
        if x.shape == shape:
            return x
        y = self.node("Expand", [x, self.indices(shape)], shape, x.dtype)
        self._sources[y.name] = self._sources.get(x.name, x)
        return y

    def pad(self, x: OnnxValue, pairs: Sequence[tuple[int, int]], number: float = 0) -> OnnxValue:
        """``(lo, hi)`` cells of ``number`` around each axis; a negative end takes cells away.

        ONNX Runtime pads no integers of 16 bits, so they are padded in 32.
        """
        if not any(end for pair in pairs for end in pair):
            return x
        if x.dtype.kind in "iu" and x.dtype.itemsize == 2:
            return self.cast(self.pad(self.cast(x, INT32), pairs, number), x.dtype)
        ends = self.indices([lo for lo, _ in pairs] + [hi for _, hi in pairs])
        shape = tuple(lo + n + hi for (lo, hi), n in zip(pairs, x.shape, strict=True))
        return self.node("Pad", [x, ends, self.constant(number, x.dtype)], shape, x.dtype)

    def first(self, x: OnnxValue, axis: int, count: int) -> OnnxValue:
        """The first ``count`` cells along an axis."""
        if x.shape[axis] == count:
            return x
        window = [self.indices([entry]) for entry in (0, count, axis)]
        return self.node("Slice", [x, *window], (*x.shape[:axis], count, *x.shape[axis + 1 :]), x.dtype)

    def gather(self, x: OnnxValue, places: Array, axis: int) -> OnnxValue:
        """The axis replaced by those of ``places``, each the cell named there."""
        shape = (*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])
        return self.node("Gather", [x, self.indices(places)], shape, x.dtype, axis=axis)

    def are_places(self, x: OnnxValue) -> bool:
        """Whether all are known not to be negative."""
        return x.dtype.kind == "u" or x.name in self._places

    def reduce(self, op_type: str, x: OnnxValue, axes: Sequence[int], keepdims: bool = False) -> OnnxValue:
        """``ReduceSum``, ``ReduceMean``, ``ReduceMax`` or ``ReduceMin`` over axes.

        Integers are summed in 64 bits: cut back to their own, that wraps around as their sum does. ONNX does not sum
        the narrow ones, and ONNX Runtime's sums of 32 bits stop at the ends of the range.
        """
        if not axes:
            return x
        if op_type == "ReduceSum" and x.dtype.kind in "iu" and x.dtype.itemsize < 8:
            x = self.cast(x, INT64)
        shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape) if keepdims or a not in axes)
        return self.node(op_type, [x, self.indices(list(axes))], shape, x.dtype, keepdims=int(keepdims))


# --- the table of emitters --------------------------------------------------------------------------------------------


Results = OnnxValue | tuple[OnnxValue, ...] | None

Emit = Callable[..., Results]
"""``emit(emitter, attributes, *operands)`` gives the operator's outputs; None if ONNX has none for these operands."""

Written = TypeVar("Written", bound=Emit)

SMALL_FLOATS = {np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)}

EMITTERS: dict[str, Emit] = {}
"""By the name of the operator; importing the package fills it."""


def emits(name: str, *, moves: bool = False) -> Callable[[Written], Written]:
    """The decorated function writes this operator.

    float16 and bfloat16 are computed in float32 and rounded once, as kernels do it, unless the operator only ``moves``
    numbers.
    """

    def register(emit: Written) -> Written:
        EMITTERS[name] = emit if moves else _widen(emit)
        return emit

    return register


def emits_each(rows: Mapping[str, Emit], *, moves: bool = False) -> None:
    """Register the emitters of a table by the names of their operators."""
    for name, emit in rows.items():
        emits(name, moves=moves)(emit)


def _widen(emit: Emit) -> Emit:
    def wide(e: Emitter, attrs: Any, *operands: OnnxValue) -> Results:
        return emit(e, attrs, *(e.cast(v, FLOAT32) if v.dtype in SMALL_FLOATS else v for v in operands))

    return wide


def emit(e: Emitter, node: Node, operands: Sequence[OnnxValue]) -> tuple[OnnxValue, ...]:
    """The outputs of a node, each with the shape and dtype of its variable."""
    if all(v.type.size == 0 for v in node.outputs):
        return tuple(e.full(v.shape, 0, v.dtype.numpy) for v in node.outputs)
    write = EMITTERS.get(node.op.name)
    results = None if write is None else write(e, node.attrs, *operands)
    if results is None:
        results = _emit_parts(e, node, operands)
    written = (results,) if isinstance(results, OnnxValue) else results
    return tuple(e.cast(v, var.dtype.numpy) for v, var in zip(written, node.outputs, strict=True))


def _emit_parts(e: Emitter, node: Node, operands: Sequence[OnnxValue]) -> tuple[OnnxValue, ...]:
    """The outputs of a node, by what it decomposes into."""
    builder = Builder()
    inputs = [builder.input(v.type) for v in node.inputs]
    graph = simplify(builder.build(decomposed(node.op, node.attrs, inputs), allow_unused=True))
    values = dict(zip(graph.inputs, operands, strict=True))
    values |= {v: e.expand(e.constant(distinct(array)), array.shape) for v, array in graph.constants.items()}
    for part in graph.nodes:
        values |= zip(part.outputs, emit(e, part, [values[v] for v in part.inputs]), strict=True)
    return tuple(values[v] for v in graph.outputs)
