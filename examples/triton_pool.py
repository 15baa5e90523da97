"""A max pooling in Triton with a mistake at the border, which docs/check_your_kernel.md judges."""

import torch
import triton
import triton.language as tl


@triton.jit
def kernel(
    x, y, height, width, rows, columns, down, right, top, left, K: tl.constexpr, L: tl.constexpr, B: tl.constexpr
):
    plane, cell = tl.program_id(0), tl.program_id(1) * B + tl.arange(0, B)
    i, j = cell // columns * down - top, cell % columns * right - left
    best = tl.full((B,), float("-inf"), tl.float32)
    for k in tl.static_range(K):
        for l in tl.static_range(L):
            real = (i + k >= 0) & (i + k < height) & (j + l >= 0) & (j + l <= width) & (cell < rows * columns)
            number = tl.load(x + plane * height * width + (i + k) * width + j + l, mask=real, other=float("-inf"))
            best = tl.maximum(best, number, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y + plane * rows * columns + cell, best, mask=cell < rows * columns)


class TritonPool:
    array = "torch"  # the library of the arrays that it takes
    dtypes = ("f32",)
    conventions = ("padding_only_minus_inf",)  # what it gives for a window without a real cell

    def max_pool2d(self, x, kernel_size, stride, padding):
        (k, l), (down, right), ((top, bottom), (left, far)) = kernel_size, stride, padding
        *lead, height, width = x.shape
        rows, columns = (height + top + bottom - k) // down + 1, (width + left + far - l) // right + 1
        y = torch.empty((*lead, rows, columns), dtype=x.dtype, device=x.device)
        if y.numel():
            grid = (y.numel() // (rows * columns), triton.cdiv(rows * columns, 64))
            kernel[grid](x.contiguous(), y, height, width, rows, columns, down, right, top, left, K=k, L=l, B=64)
        return y
