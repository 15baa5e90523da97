import torch

y = torch.nn.functional.conv1d(torch.zeros(0, 5), torch.zeros(2, 0, 3))
batched = torch.nn.functional.conv1d(torch.zeros(1, 0, 5), torch.zeros(2, 0, 3))

print("y", tuple(y.shape))
print("batched", tuple(batched.shape))
print("fixed" if tuple(y.shape) == (2, 3) else "not fixed")
