"""Picking one cell per label, and placing it back, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from gradspec.backends.cpu.axes import Strides, by_stride, merged
from gradspec.backends.cpu.binding import KernelCall, task_of
from gradspec.backends.cpu.reduce.arguments import ChoiceArguments, ChoiceAxis, LabelKind
from gradspec.codegen.cache import kernel
from gradspec.graph.ir import Array
from gradspec.graph.types import DType
from gradspec.runtime.task import Lowering, LoweringBase, Task, Work
from gradspec.spec.loss import label_outside

SOURCE = "gradspec.backends.cpu.reduce.kernels.labels"

CELLS_PER_UNIT = 4096
NANOSECONDS_PER_LABEL = 2.0
NANOSECONDS_PER_CELL = 0.2


@dataclass(frozen=True)
class _Choice:
    """``shape`` of the array that has an axis of classes: what is placed in, or picked from."""

    shape: tuple[int, ...]
    axis: int
    width: int
    labels: DType
    places: bool

    @property
    def classes(self) -> int:
        return self.shape[self.axis]

    def __call__(self, strides: Sequence[Strides]) -> KernelCall[ChoiceArguments]:
        larger = 2 if self.places else 0
        steps = [[*s] for s in strides]
        class_stride = steps[larger].pop(self.axis)
        sizes = [n for a, n in enumerate(self.shape) if a != self.axis]
        found = merged(by_stride(zip(sizes, zip(*steps, strict=True), strict=True), larger))
        *axes, last = (ChoiceAxis(size, *each) for size, each in found or [(1, (0, 0, 0))])
        block = max(1, min(last.size, CELLS_PER_UNIT // max(1, self.classes if self.places else 1)))
        blocks = -(-last.size // block)
        kind, classes = LabelKind[self.labels.name.upper()], self.classes
        arguments = ChoiceArguments(tuple(axes), last, block, blocks, kind, self.width, classes, class_stride)
        return KernelCall(arguments, prod(axis.size for axis in axes) * blocks, 0)


def require_classes(labels: Array, classes: int) -> None:
    """An error that names the first label which is no class.

    Read as unsigned numbers, negative labels are larger than all others, so that one comparison finds both kinds.

    >>> require_classes(np.array([0, 2, -1]), 3)
    Traceback (most recent call last):
        ...
    ValueError: the label -1 names none of the 3 classes; labels go from 0 to 2
    """
    is_signed, width = labels.dtype.kind == "i", labels.dtype.itemsize
    limit = min(classes, 1 << (8 * width - 1)) if is_signed else classes
    if labels.size and np.maximum.reduce(labels.view(f"u{width}"), axis=None) >= limit:
        raise label_outside(int(labels[(labels < 0) | (labels >= classes)][0]), classes)


class _ChoiceLowering(LoweringBase):
    """Labels are looked at before anything is done with them."""

    def __init__(self, places: bool) -> None:
        self.places = places

    def task(self, work: Work) -> Task | None:
        ((node,), (x, labels), (y,)) = work.nodes, work.nodes[0].inputs, work.nodes[0].outputs
        if labels.dtype.name.upper() not in LabelKind.__members__:
            return None
        shape, width = y.shape if self.places else x.shape, x.dtype.numpy.itemsize
        choice = _Choice(shape, node.attrs.axis, width, labels.dtype, self.places)
        cost = NANOSECONDS_PER_LABEL * labels.type.size + NANOSECONDS_PER_CELL * y.type.size
        name, function = f"{node.op.name} {x.dtype}", kernel(SOURCE, node.op.name)
        checks = ((labels, partial(require_classes, classes=choice.classes)),)
        return task_of(name, function, node.inputs, node.outputs, choice, cost, checks=checks)


LOWERINGS: dict[str, Lowering] = {"pick": _ChoiceLowering(places=False), "place": _ChoiceLowering(places=True)}
