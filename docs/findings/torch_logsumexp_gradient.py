import torch

x = torch.tensor([4096.2, 4097.106], requires_grad=True)
(gradient,) = torch.autograd.grad(torch.logsumexp(x, 0), x)
softmax = torch.softmax(x.detach(), 0)

for name, values in (("gradient", gradient), ("softmax", softmax)):
    print(name, [round(value, 6) for value in values.tolist()], "sum", round(values.sum().item(), 6))
print("fixed" if torch.allclose(gradient, softmax, rtol=1e-5) else "not fixed")
