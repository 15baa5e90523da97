import torch

x = torch.ones(2, 3, requires_grad=True)
options = {
    "kernel_size": 2,
    "padding": 1,
    "dilation": 4,
}  # the one window of a row has the cells -1 and 3: padding alone
_, indices = torch.nn.functional.max_pool1d(x, **options, return_indices=True)
(gradient,) = torch.autograd.grad(torch.nn.functional.max_pool1d(x, **options), x, torch.tensor([[1.0], [0.0]]))

print("indices", indices.tolist())
print("gradient", gradient.tolist())
print("not fixed" if indices.max() >= 3 or gradient[1].any() else "fixed")
