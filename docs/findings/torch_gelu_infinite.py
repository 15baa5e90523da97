import torch

infinite = torch.tensor([float("inf"), 1.0])

value = torch.nn.functional.gelu(infinite)
print("of two numbers:", value.tolist())
print("of one number:", torch.nn.functional.gelu(infinite[:1]).tolist())
with torch.backends.mkldnn.flags(enabled=False):
    print("without oneDNN:", torch.nn.functional.gelu(infinite).tolist())
print("not fixed" if value.isnan().any() else "fixed")
