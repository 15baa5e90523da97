import torch

x, weight = torch.ones(1, 4, dtype=torch.float16), torch.ones(4, dtype=torch.float16)
bias = torch.zeros(4, dtype=torch.float16)
ones = torch.ones(4, dtype=torch.float16)


def of_bias(b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, (4,), weight, b)


y, tangent = torch.func.jvp(of_bias, (bias,), (ones,))
(gradient,) = torch.func.vjp(of_bias, bias)[1](ones[None])
print("y", y.tolist())
print("tangent along the bias", tangent.tolist())
print("gradient of the bias", gradient.tolist())
print("fixed" if tangent.tolist() == [[1, 1, 1, 1]] else "not fixed")
