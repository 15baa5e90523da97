"""Rows of samples between cells. No place is on a cell, where the derivative has a step."""

import gradspec as gs
from graph.op_cases import GraphCase

ROWS = [
    GraphCase(
        f"grid_sample {mode} {border} {shape}",
        lambda x, grid, mode=mode, border=border, a=align_corners: gs.grid_sample(x, grid, mode, border, a),
        (shape, grid),
    )
    for mode, border, align_corners, shape, grid in (
        ("bilinear", "zeros", False, (1, 2, 3, 4), (1, 1, 2, 2)),
        ("bilinear", "reflection", False, (2, 1, 3), (2, 2, 1)),
        ("nearest", "border", False, (1, 1, 3, 4), (1, 2, 1, 2)),
        ("bicubic", "border", False, (1, 2, 4), (1, 2, 1)),
        ("bilinear", "zeros", True, (1, 1, 4), (1, 2, 1)),
    )
]
