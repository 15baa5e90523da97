import math

import numpy as np
from run_onnx import run

(y,) = run("Gelu", [np.array([1.0])], opset=20, approximate="tanh")
right = 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (1 + 0.044715)))

print("y", y.item())
print("right", right)
print("fixed" if abs(y.item() - right) < 1e-15 else "not fixed")
