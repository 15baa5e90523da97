import torch

x = torch.zeros(1, 1, 2, 1, 3, dtype=torch.uint8)
options = {"kernel_size": (2, 1, 2), "padding": (1, 0, 1), "return_indices": True}
_, plain = torch.nn.functional.max_pool3d(x, **options)
_, last = torch.nn.functional.max_pool3d(x.to(memory_format=torch.channels_last_3d), **options)

print("contiguous", plain.tolist())
print("channels last", last.tolist())
print("fixed" if torch.equal(plain, last) else "not fixed")
