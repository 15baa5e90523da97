"""One cell per label, picked or placed. Cells are moved as they are, whatever they mean.

Labels have been checked. But another thread may write to them, so what is no class is passed over here.
"""

from typing import Any

from gradspec.backends.cpu.kernels import choices as c
from gradspec.backends.cpu.kernels.compiler import (
    Type,
    i8,
    i32,
    i64,
    inlined,
    lanes,
    outlined,
    u8,
    u16,
    u32,
    u64,
)
from gradspec.backends.cpu.kernels.memory import pointer_to
from gradspec.backends.cpu.kernels.target import kernel_code

CELLS = (u8, u16, u32, u64)

longs_at, ints_at, shorts_at, bytes_at = map(pointer_to, (i64, i32, i8, u8))


def build(name: str) -> str:
    """The code of the kernel called ``"pick"`` or ``"place"``."""
    return kernel_code(_kernel([{"pick": _pick, "place": _place}[name](cell) for cell in CELLS]))


@inlined
def label(args, at):
    """In the order of ``KINDS``."""
    kind, labels = args[c.KIND], args[c.LABELS]
    if kind == 0:
        return longs_at(labels)[at]
    if kind == 1:
        return ints_at(labels)[at]
    if kind == 2:
        return shorts_at(labels)[at]
    return bytes_at(labels)[at]


def _pick(cell: Type) -> Any:
    cells_at = pointer_to(cell)

    @outlined
    def pick(args, x_at, label_at, y_at, n):
        x, y = cells_at(args[c.X]), cells_at(args[c.Y])
        for i in range(n):
            chosen = label(args, label_at + i * args[c.LABEL_STEP])
            if chosen >= 0 and chosen < args[c.CLASSES]:
                y[y_at + i * args[c.Y_STEP]] = x[x_at + i * args[c.X_STEP] + chosen * args[c.CLASS_STEP]]

    return pick


def _place(cell: Type) -> Any:
    cells_at, zero = pointer_to(cell), cell(0)

    @outlined
    def clear(y, at, step, n):
        if step == 1:
            for i in lanes(cell, n):
                y[at + i] = zero
        else:
            for i in range(n):
                y[at + i * step] = zero

    @outlined
    def place(args, x_at, label_at, y_at, n):
        x, y, step, classes = cells_at(args[c.X]), cells_at(args[c.Y]), args[c.Y_STEP], args[c.CLASSES]
        if step == 1:
            for k in range(classes):
                clear(y, y_at + k * args[c.CLASS_STEP], 1, n)
        else:
            for i in range(n):
                clear(y, y_at + i * step, args[c.CLASS_STEP], classes)
        for i in range(n):
            chosen = label(args, label_at + i * args[c.LABEL_STEP])
            if chosen >= 0 and chosen < classes:
                y[y_at + i * step + chosen * args[c.CLASS_STEP]] = x[x_at + i * args[c.X_STEP]]

    return place


def _kernel(moves: Any) -> Any:
    """One unit is a block of labels along the last axis."""
    by_one, by_two, by_four, by_eight = moves

    def move(args, x_at, label_at, y_at, n):
        if args[c.WIDTH] == 4:
            by_four(args, x_at, label_at, y_at, n)
        elif args[c.WIDTH] == 8:
            by_eight(args, x_at, label_at, y_at, n)
        elif args[c.WIDTH] == 2:
            by_two(args, x_at, label_at, y_at, n)
        else:
            by_one(args, x_at, label_at, y_at, n)

    def kernel(args, lo, hi, workspace):
        for unit in range(lo, hi):
            first, rest = unit % args[c.BLOCKS] * args[c.BLOCK], unit // args[c.BLOCKS]
            x_at, label_at, y_at = first * args[c.X_STEP], first * args[c.LABEL_STEP], first * args[c.Y_STEP]
            for axis in range(args[c.AXES] - 1, -1, -1):
                at = c.HEADER + axis * c.AXIS
                here = rest % args[at]
                rest //= args[at]
                x_at += here * args[at + 1]
                label_at += here * args[at + 2]
                y_at += here * args[at + 3]
            move(args, x_at, label_at, y_at, min(args[c.BLOCK], args[c.COUNT] - first))

    return kernel
