import torch

x = torch.tensor([[256.0], [255.9], [256.0], [256.2], [256.8]], dtype=torch.float16)
g = torch.tensor([[257.0], [255.4], [256.0], [256.8], [256.0]], dtype=torch.float16)
weight = torch.ones(1, dtype=torch.float16)


def gradient_of_bias(threads: int) -> float:
    torch.set_num_threads(threads)
    bias = torch.zeros(1, dtype=torch.float16, requires_grad=True)
    return torch.autograd.grad(torch.nn.functional.layer_norm(x, (1,), weight, bias), bias, g)[0].item()


one, two = gradient_of_bias(1), gradient_of_bias(2)
print("1 thread", one)
print("2 threads", two)
print("sum in double precision", g.double().sum().item())
print("fixed" if one == two else "not fixed")
