"""Small planes of short bins, several side by side.

Bins begin at uneven distances and have different lengths, which vectors along a row cannot follow. So as many planes as
vectors are long, or more, are turned: then the cells of all planes at one place are a run, and a bin is put together
from such runs.
"""

from __future__ import annotations

from gradspec.backends.cpu.conv.kernels.turning import Strided, turn
from gradspec.backends.cpu.pool.arguments import Role
from gradspec.backends.cpu.pool.kernels.rows import (
    cell_row,
    cell_rows,
    dense_stride,
    is_dense,
    last_axis,
)
from gradspec.backends.cpu.pool.kernels.walk import Destination
from gradspec.codegen.intrinsics import address_of
from gradspec.codegen.language import outlined


@outlined
def turn_planes(reduction, work):
    """The planes of a unit, divided if the input is to be."""
    args, unit, form, n, last = work.args, work.unit, reduction.form, work.unit.neighbours, last_axis(work.args)
    slabs, rows, length = args.axes[0].size, cell_rows(args), last.size
    if is_dense(args, Role.X):
        slabs, rows, length = 1, 1, args.axes[0].size * dense_stride(args, 0)
    to = address_of(work.cells.value) + args.staged_at * form.computed.bytes
    for slab in range(slabs):
        for r in range(rows):
            here = args.arrays[Role.X] + cell_row(args, unit, Role.X, slab, r) * form.stored.bytes
            turn(form, Strided(here, args.inner_strides[Role.X], last.strides[Role.X]), n, length, to, n)
            to += length * n * form.computed.bytes
    if reduction.reads_backwards and args.scales_input:
        reduction.scale_turned(
            work, Destination(work.cells, args.staged_at), args.axes[0].size * dense_stride(args, 0), n
        )
