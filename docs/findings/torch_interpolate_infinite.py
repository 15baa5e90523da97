from math import inf

import torch

x = torch.tensor([[[1.0, inf, 1.0]]])
same = torch.nn.functional.interpolate(x, size=3, mode="linear")
double = torch.nn.functional.interpolate(x, size=6, mode="linear")

print("3 cells to 3", same.tolist())
print("3 cells to 6", double.tolist())
print("fixed" if torch.equal(same, x) and double[0, 0, 0] == 1 else "not fixed")
