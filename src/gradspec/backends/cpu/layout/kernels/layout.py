"""Copies between arrays of any strides, and fills: one kernel for every size of a number, whatever its bits mean.

A box is copied two axes at a time: in rows, or, where one array is contiguous along one of the two axes and the other
along the other, in squares that are transposed in registers.
"""

from __future__ import annotations

from gradspec.backends.cpu.layout.arguments import CopyArguments, CopyKind
from gradspec.backends.cpu.layout.kernels.rows import BITS, copy_row, fill_row
from gradspec.backends.cpu.layout.kernels.transpose import copy_transposed
from gradspec.codegen.language import inlined
from gradspec.codegen.translation import kernel_code


def build(name: str) -> str:
    """The code of the kernel called ``"copy:4"`` for numbers of four bytes."""
    return kernel_code(copy, CopyArguments, BITS[int(name.removeprefix("copy:"))])


@inlined
def copy_plane(form, args, box, source, target):
    """The last two axes of a box."""
    rows, cells = box.axes[len(box.axes) - 2], box.axes[len(box.axes) - 1]
    n, step, jump = cells.size, cells.source_stride, cells.target_stride
    if box.kind == CopyKind.SQUARES:
        copy_transposed(form, source, step, target, rows.target_stride, n, rows.size)
        return
    for i in range(rows.size):
        x, y = source + i * rows.source_stride, target + i * rows.target_stride
        if box.kind == CopyKind.ROWS:
            copy_row(form, y, jump, x, step, n)
        elif box.kind == CopyKind.REPEATED:
            fill_row(form, y, jump, form.stored_at(x)[0], n)
        else:
            fill_row(form, y, jump, form.stored(args.value), n)


def copy_box(form, args, box, a, source, target):
    """The planes of a box along the axes from number ``a`` on."""
    if a == len(box.axes) - 2:
        copy_plane(form, args, box, source, target)
        return
    axis = box.axes[a]
    for i in range(axis.size):
        copy_box(form, args, box, a + 1, source + i * axis.source_stride, target + i * axis.target_stride)


def copy(form, args, lo, hi, workspace):
    """A unit is some boxes, for one index of an axis that all of them have."""
    together = args.together
    groups = len(args.boxes) // together
    for unit in range(lo, hi):
        lead, first = unit // groups, unit % groups * together
        for i in range(first, first + together):
            box = args.boxes[i]
            source = box.source + box.source_at + lead * box.source_lead
            target = args.target + box.target_at + lead * box.target_lead
            copy_box(form, args, box, 0, source, target)
