import numpy as np
from run_onnx import run


def largest(operator, *cells, **attributes):
    return run(operator, [np.array([[cells]], np.float32)], **attributes)[0].ravel().tolist()


alone = [largest("MaxPool", cell, kernel_shape=[1]) + largest("GlobalMaxPool", cell) for cell in (-np.inf, np.nan)]
pairs = largest("MaxPool", 1, np.nan, 1, kernel_shape=[2])

print("maxima of -inf", alone[0])
print("maxima of nan", alone[1])
print("maxima of (1, nan) and (nan, 1)", pairs)
print("fixed" if alone[0] == [-np.inf] * 2 and np.isnan([*alone[1], *pairs]).all() else "not fixed")
