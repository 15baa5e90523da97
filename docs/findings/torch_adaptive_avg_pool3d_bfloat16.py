import torch

x = torch.ones(1, 1, 2, 23, 31, dtype=torch.bfloat16)
plain = torch.nn.functional.adaptive_avg_pool3d(x, (1, 3, 2))
last = torch.nn.functional.adaptive_avg_pool3d(x.to(memory_format=torch.channels_last_3d), (1, 3, 2))

print("contiguous", plain.flatten().tolist())
print("channels last", last.flatten().tolist())
print("fixed" if (last == 1).all() else "not fixed")
