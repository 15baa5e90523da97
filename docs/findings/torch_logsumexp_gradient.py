import torch

x = torch.tensor([4096.2, 4097.106], requires_grad=True)
(gradient,) = torch.autograd.grad(torch.logsumexp(x, 0), x)
softmax = torch.softmax(x.detach(), 0)

print("gradient", gradient.tolist(), "sum", gradient.sum().item())
print("softmax", softmax.tolist(), "sum", softmax.sum().item())
print("fixed" if torch.allclose(gradient, softmax, rtol=1e-5) else "not fixed")
