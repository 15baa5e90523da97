import torch


def with_gaps(tensor):
    """The same numbers, with gaps between them in memory."""
    memory = torch.zeros([2 * size for size in tensor.shape], dtype=tensor.dtype)
    return memory[tuple(slice(None, None, 2) for _ in tensor.shape)].copy_(tensor)


def gradient_of_max_unpool(change):
    x = change(torch.ones(1, 2, 2)).requires_grad_()
    indices, g = change(torch.tensor([[[0, 1], [2, 3]]])), change(torch.ones(1, 2, 2))
    y = torch.nn.functional.max_unpool2d(x, indices, 1, 1, output_size=(2, 2))
    return torch.autograd.grad(y, x, g)[0].tolist()


print("contiguous", gradient_of_max_unpool(lambda tensor: tensor))
try:
    print("with gaps", gradient_of_max_unpool(with_gaps))
    print("fixed")
except RuntimeError as error:
    print("with gaps", str(error).partition("(")[0])
    print("not fixed")
