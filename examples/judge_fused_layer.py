"""Judge a fused layer that is written tile by tile, as for a GPU, by the one line that says what it computes.

The kernel makes ``silu(x @ w + b) * scale`` in one pass: every program makes one tile of the result, reads blocks of
its operands through masks, and adds up their products in float32. Tiles go wrong at their edges, so the judge is told
how large they are and tries sizes around that.

    python examples/judge_fused_layer.py               # the kernel as it should be
    python examples/judge_fused_layer.py --unmasked    # a mask forgotten: what a finding looks like
"""

import sys

import click
import numpy as np

import gradspec as gs
from gradspec.testing import check_kernel

ROWS, COLUMNS, INNER = 4, 8, 16
"""The sizes of a tile, and of the blocks that are multiplied for it."""


def reference(x, w, b, scale):
    """What is meant."""
    return gs.silu(x @ w + b) * scale


def load(array, rows, columns, masked=True):
    """A block of a matrix; what lies beyond its edge is 0, or, without a mask, whatever is read there."""
    inside = (rows < array.shape[0])[:, None] & (columns < array.shape[1])
    block = array[np.minimum(rows, array.shape[0] - 1)[:, None], np.minimum(columns, array.shape[1] - 1)]
    return np.where(inside, block, array.dtype.type(0)) if masked else block


def store(array, rows, columns, block):
    """What of a block lies in the matrix."""
    rows, columns = rows[rows < array.shape[0]], columns[columns < array.shape[1]]
    array[rows[:, None], columns] = block[: len(rows), : len(columns)]


def program(row, column, x, w, b, scale, y, masked):
    """One tile: products of blocks along the inner axis, and the rest of the layer before anything is stored."""
    rows, columns = row * ROWS + np.arange(ROWS), column * COLUMNS + np.arange(COLUMNS)
    total = np.zeros((ROWS, COLUMNS), np.float32)
    for start in range(0, x.shape[1], INNER):
        inner = start + np.arange(INNER)
        total += load(x, rows, inner, masked) @ load(w, inner, columns, masked)
    first = np.zeros(1, int)
    z = total + load(b[None], first, columns)
    store(y, rows, columns, z / (1 + np.exp(-z)) * load(scale[None], first, columns))


def fused_layer(x, w, b, scale, masked=True):
    """The kernel: a grid of programs that know nothing of each other."""
    y = np.empty((x.shape[0], w.shape[1]), x.dtype)
    for row, column in np.ndindex(-(-y.shape[0] // ROWS), -(-y.shape[1] // COLUMNS)):
        program(row, column, x, w, b, scale, y, masked)
    return y


def unmasked_layer(x, w, b, scale):
    return fused_layer(x, w, b, scale, masked=False)


def judge(kernel, cases):
    """All that a test needs: the kernel, what is meant, the types of its arguments; the rest may be left out."""
    return check_kernel(
        kernel,
        spec=reference,
        inputs="f32[8,32],f32[32,16],f32[16],f32[16]",
        blocks=(ROWS, COLUMNS, INNER),
        cases=cases,
    )


@click.command()
@click.option("--unmasked", is_flag=True, help="Judge the kernel that forgot a mask.")
@click.option("--cases", default=200, help="Cases to judge it on. [200]")
def main(unmasked, cases):
    """Judge the layer."""
    try:
        run = judge(unmasked_layer if unmasked else fused_layer, cases)
    except AssertionError as told:
        sys.exit(str(told))
    judged, weak = run.tally.cells["value", "judged"], run.tally.cells["value", "weak"]
    click.echo(f"{judged:,} cells were judged in {run.cases} cases, of which {weak:,} could hardly fail.")


if __name__ == "__main__":
    main()
