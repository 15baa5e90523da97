"""One cell per label, picked or placed. Cells are moved as they are, whatever they mean.

Labels have been checked. But another thread may write to them, so what is no class is passed over here.
"""

from __future__ import annotations

from gradspec.backends.cpu.reduce.arguments import ChoiceArguments, LabelKind
from gradspec.codegen.language import i8, i32, i64, inlined, lanes, outlined, pointer, u8, u16, u32, u64
from gradspec.codegen.translation import kernel_code

CELLS = (u32, u64, u16, u8)
longs_at, ints_at, shorts_at, bytes_at = map(pointer, (i64, i32, i8, u8))


def build(name: str) -> str:
    """The code of the kernel called ``"take_label"`` or ``"put_label"``."""
    return kernel_code(kernel, ChoiceArguments, {"take_label": take_label, "put_label": put_label}[name])


def kernel(move, args, lo, hi, workspace):
    """One unit is a block of labels along the last axis."""
    last = args.last
    for unit in range(lo, hi):
        first, rest = unit % args.blocks * args.block, unit // args.blocks
        x_at, label_at, y_at = first * last.x_stride, first * last.label_stride, first * last.y_stride
        for i in range(len(args.axes) - 1, -1, -1):
            axis = args.axes[i]
            here, rest = rest % axis.size, rest // axis.size
            x_at += here * axis.x_stride
            label_at += here * axis.label_stride
            y_at += here * axis.y_stride
        for cell in CELLS:
            if args.width == cell.bytes:
                move(cell, args, x_at, label_at, y_at, min(args.block, last.size - first))


@outlined
def take_label(cell, args, x_at, label_at, y_at, n):
    x, y, last = pointer(cell)(args.x), pointer(cell)(args.y), args.last
    for i in range(n):
        chosen = label(args, label_at + i * last.label_stride)
        if chosen >= 0 and chosen < args.classes:
            y[y_at + i * last.y_stride] = x[x_at + i * last.x_stride + chosen * args.class_stride]


@outlined
def put_label(cell, args, x_at, label_at, y_at, n):
    x, y, last = pointer(cell)(args.x), pointer(cell)(args.y), args.last
    if last.y_stride == 1:
        for k in range(args.classes):
            clear(cell, y, y_at + k * args.class_stride, 1, n)
    else:
        for i in range(n):
            clear(cell, y, y_at + i * last.y_stride, args.class_stride, args.classes)
    for i in range(n):
        chosen = label(args, label_at + i * last.label_stride)
        if chosen >= 0 and chosen < args.classes:
            y[y_at + i * last.y_stride + chosen * args.class_stride] = x[x_at + i * last.x_stride]


@outlined
def clear(cell, y, at, step, n):
    if step == 1:
        for i in lanes(cell, n):
            y[at + i] = cell(0)
    else:
        for i in range(n):
            y[at + i * step] = cell(0)


@inlined
def label(args, at):
    if args.kind == LabelKind.I64:
        return longs_at(args.labels)[at]
    if args.kind == LabelKind.I32:
        return ints_at(args.labels)[at]
    if args.kind == LabelKind.I8:
        return shorts_at(args.labels)[at]
    return bytes_at(args.labels)[at]
