import torch

x = torch.tensor([[2.0**-130]], dtype=torch.bfloat16)
weight = torch.ones(1, 1, 1, dtype=torch.bfloat16)
convolved = torch.nn.functional.conv1d(x, weight)

print("x * 1", (x * 1).item())
print("conv1d", convolved.item())
print("fixed" if torch.equal(convolved, x) else "not fixed")
