import numpy as np
from run_onnx import run

# Two channels of one block of two cells that are 2 apart, over an image of 2 cells with 1 cell of padding before it.
columns = np.ones((1, 4, 1), np.float32)
(plane,) = run("Col2Im", [columns], [[2, 1], [2, 1]], dilations=[2, 1], pads=[1, 0, 0, 0])
(volume,) = run("Col2Im", [columns], [[2, 1, 1], [2, 1, 1]], dilations=[2, 1, 1], pads=[1, 0, 0, 0, 0, 0])

print("as 2 x 1 cells", plane.ravel().tolist())
print("as 2 x 1 x 1 cells", volume.ravel().tolist())
print("fixed" if (plane.ravel() == volume.ravel()).all() else "not fixed")
