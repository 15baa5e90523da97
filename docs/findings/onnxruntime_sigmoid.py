import numpy as np
from run_onnx import run

x = np.array([-16.0, -20.0, -45.0], np.float32)
y = run("Sigmoid", [x])[0]
right = 1 / (1 + np.exp(-x.astype(np.float64)))

print("y", y.tolist())
print("right", right.tolist())
print("fixed" if np.allclose(y, right, rtol=1e-5) else "not fixed")
