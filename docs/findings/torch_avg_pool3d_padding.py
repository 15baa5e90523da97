import torch
from torch.nn import functional

x, options = torch.ones(1, 1, 1, 1), {"kernel_size": 4, "padding": 2}
print("avg_pool2d", tuple(functional.avg_pool2d(x, **options).shape))
try:
    print("avg_pool3d", tuple(functional.avg_pool3d(x, **options).shape))
    print("fixed")
except RuntimeError as error:
    print("avg_pool3d", error)
    print("not fixed")
