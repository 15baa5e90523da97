"""Single layers and functions of PyTorch, in groups that share their inputs: every operator that import knows."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

Layer = Callable[..., Any]


@dataclass(frozen=True)
class Group:
    """Layers of the same inputs: of these shapes, random, or these very tensors; and how far PyTorch may be off."""

    inputs: tuple[Any, ...]
    layers: Mapping[str, Layer]
    slack: float = 0.0

    def tensors(self, seed: int = 0) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        return tuple(
            given.clone() if isinstance(given, Tensor) else torch.randn(given, generator=generator, dtype=torch.float64)
            for given in self.inputs
        )

    def module(self) -> nn.Module:
        """The layers in evaluation mode, with random parameters and statistics that are the same each time."""
        module = copy.deepcopy(AllOf(self.layers)).double().eval()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, tensor in module.state_dict().items():
                if tensor.is_floating_point():
                    tensor.normal_(std=0.5, generator=generator)
                if name.endswith("running_var"):
                    tensor.exp_()
        return module


class AllOf(nn.Module):
    """The results of all layers, each of the same inputs."""

    def __init__(self, layers: Mapping[str, Layer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(each if isinstance(each, nn.Module) else Call(each) for each in layers.values())

    def forward(self, *inputs: Tensor) -> list[Any]:
        return [layer(*inputs) for layer in self.layers]


class Call(nn.Module):
    def __init__(self, function: Layer) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def pooled_and_unpooled(rank: int) -> Layer:
    pool, unpool = (getattr(F, f"{name}{rank}d") for name in ("max_pool", "max_unpool"))

    def layer(x: Tensor) -> Tensor:
        y, winners = pool(x, 2, return_indices=True)
        return unpool(y, winners, 2, output_size=x.shape[2:])

    return layer


def added_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y += x
    y.mul_(x).relu_()
    return y - x


def written_through_a_view(x: Tensor) -> Tensor:
    y = x * 2
    y[:, 0] += 1.0
    y[:, :, 1:3].mul_(3.0)
    return y


CONV = {
    1: (2, 4, 11),
    2: (2, 4, 7, 6),
    3: (1, 2, 4, 5, 3),
}
"""Shapes of inputs for each rank; none of the sizes is a multiple of the strides below."""

MASK = torch.tensor([[True, False, True, True, False, True], [False] * 5 + [True], [True] * 6])
"""Which keys a query sees."""

WEIGHTS = torch.tensor([0.5, 1.0, 0.25, 3.0, 1.5], dtype=torch.float64)
"""Of classes."""

GROUPS: dict[str, Group] = {
    "conv1d": Group(
        (CONV[1],),
        {
            "plain": nn.Conv1d(4, 3, 3),
            "all options": nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2, bias=False),
            "same": nn.Conv1d(4, 2, 4, padding="same", dilation=2),
            "valid": nn.Conv1d(4, 2, 3, padding="valid"),
            "circular": nn.Conv1d(4, 2, 3, padding=1, padding_mode="circular"),
            "transposed": nn.ConvTranspose1d(4, 6, 3, stride=3, padding=1, output_padding=2, groups=2, dilation=2),
        },
    ),
    "conv2d": Group(
        (CONV[2],),
        {
            "plain": nn.Conv2d(4, 3, 3),
            "all options": nn.Conv2d(4, 6, (3, 2), stride=(2, 3), padding=(1, 2), dilation=(2, 1), groups=2),
            "depthwise": nn.Conv2d(4, 8, 3, padding=1, groups=4, bias=False),
            "same": nn.Conv2d(4, 2, (4, 3), padding="same", dilation=(1, 2)),
            "valid": nn.Conv2d(4, 2, 3, stride=2, padding="valid"),
            "reflect": nn.Conv2d(4, 2, 3, padding=(1, 2), padding_mode="reflect"),
            "transposed": nn.ConvTranspose2d(4, 2, (3, 2), stride=2, padding=1, output_padding=(1, 0), bias=False),
            "transposed to a size": lambda x: F.conv_transpose2d(
                x, x[:, :, :3, :3].mean(0, True).transpose(0, 1), stride=2
            ),
        },
    ),
    "conv3d": Group(
        (CONV[3],),
        {
            "all options": nn.Conv3d(2, 4, 2, stride=(1, 2, 1), padding=(0, 1, 1), dilation=(2, 1, 2), groups=2),
            "same": nn.Conv3d(2, 1, (1, 2, 3), padding="same"),
            "transposed": nn.ConvTranspose3d(2, 2, 2, stride=2, padding=(0, 1, 0), output_padding=(1, 0, 1)),
        },
    ),
    "without a batch": Group(
        ((4, 7, 6),),
        {
            "conv2d": nn.Conv2d(4, 3, 3, padding=1),
            "conv_transpose2d": nn.ConvTranspose2d(4, 3, 3),
            "max_pool2d": nn.MaxPool2d(3, 2),
            "avg_pool2d": nn.AvgPool2d(3, 2),
            "adaptive_avg_pool2d": nn.AdaptiveAvgPool2d((3, 4)),
            "adaptive_max_pool2d": nn.AdaptiveMaxPool2d((3, 4)),
            "unfold": nn.Unfold(2),
            "pixel_shuffle": nn.PixelShuffle(2),
        },
    ),
    "channels last": Group(
        (
            torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(
                memory_format=torch.channels_last
            ),
        ),
        {
            "conv2d": nn.Conv2d(4, 3, 3, padding=1).to(memory_format=torch.channels_last),
            "max_pool2d": nn.MaxPool2d(3, 2),
            "adaptive_avg_pool2d": nn.AdaptiveAvgPool2d(4),
            "contiguous": lambda x: x.contiguous(memory_format=torch.channels_last).flatten(1),
        },
    ),
    "pool1d": Group(
        (CONV[1],),
        {
            "max": nn.MaxPool1d(3),
            "max, lists of one entry": nn.MaxPool2d([3], [], padding=[1]),
            "max, all options": nn.MaxPool1d(3, 2, padding=1, dilation=2, ceil_mode=True),
            "avg": nn.AvgPool1d(3, 2, padding=1, ceil_mode=True, count_include_pad=False),
            "adaptive avg": nn.AdaptiveAvgPool1d(4),
            "adaptive max": nn.AdaptiveMaxPool1d(4),
            "global": nn.AdaptiveAvgPool1d(1),
            "unpooled": pooled_and_unpooled(1),
            "lp": nn.LPPool1d(2, 3, 2),
            "indices": lambda x: F.max_pool1d(x, 3, 2, return_indices=True),
        },
    ),
    "pool2d": Group(
        (CONV[2],),
        {
            "max": nn.MaxPool2d(2),
            "max, all options": nn.MaxPool2d((3, 2), (2, 3), padding=1, dilation=(1, 2), ceil_mode=True),
            "max with winners": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
            "avg": nn.AvgPool2d(3, 2, padding=1),
            "avg, ceil mode": nn.AvgPool2d((3, 2), (2, 3), padding=1, ceil_mode=True),
            "avg, ceil mode, real cells": nn.AvgPool2d(3, 2, padding=1, ceil_mode=True, count_include_pad=False),
            "avg, divisor": nn.AvgPool2d(2, divisor_override=3),
            "adaptive avg": nn.AdaptiveAvgPool2d((3, 4)),
            "adaptive avg, kept": nn.AdaptiveAvgPool2d((None, 5)),
            "adaptive max": nn.AdaptiveMaxPool2d((5, 4)),
            "adaptive max with winners": nn.AdaptiveMaxPool2d((2, 4), return_indices=True),
            "global": nn.AdaptiveAvgPool2d(1),
            "global max": lambda x: F.adaptive_max_pool2d(x, 1),
            "unpooled": pooled_and_unpooled(2),
            "lp": nn.LPPool2d(2, 3, 2),
        },
    ),
    "pool3d": Group(
        (CONV[3],),
        {
            "max": nn.MaxPool3d(2, (1, 2, 1), padding=1, dilation=(1, 2, 1), ceil_mode=True),
            "max with winners": lambda x: F.max_pool3d(x, 2, return_indices=True)[1],
            "avg": nn.AvgPool3d(2, (1, 2, 1), padding=1, ceil_mode=True, count_include_pad=False),
            "adaptive avg": nn.AdaptiveAvgPool3d((3, 2, 2)),
            "adaptive max": nn.AdaptiveMaxPool3d((3, 2, 2)),
            "unpooled": pooled_and_unpooled(3),
        },
    ),
    "windows": Group(
        (CONV[2],),
        {
            "unfold": nn.Unfold((2, 3), dilation=(2, 1), padding=(1, 0), stride=(1, 2)),
            "fold": lambda x: F.fold(F.unfold(x, 2, padding=1), (7, 6), 2, padding=1),
            "tensor unfold": lambda x: x.unfold(2, 3, 2),
            "tensor unfold, first axis": lambda x: x.unfold(0, 2, 1).unfold(-2, 4, 1),
        },
    ),
    "resize": Group(
        (CONV[2],),
        {
            "nearest": nn.Upsample(scale_factor=2),
            "nearest, to a size": lambda x: F.interpolate(x, (5, 11)),
            "nearest, by a scale": lambda x: F.interpolate(x, scale_factor=(1.5, 0.6)),
            "nearest-exact": lambda x: F.interpolate(x, (5, 11), mode="nearest-exact"),
            "nearest-exact, by a scale": lambda x: F.interpolate(x, scale_factor=(1.3, 0.6), mode="nearest-exact"),
            "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
            "bilinear, to a size": lambda x: F.interpolate(x, (5, 11), mode="bilinear"),
            "bilinear, by a scale": lambda x: F.interpolate(x, scale_factor=(1.3, 0.6), mode="bilinear"),
            "bilinear, corners": lambda x: F.interpolate(x, (5, 11), mode="bilinear", align_corners=True),
            "recomputed": lambda x: F.interpolate(
                x, scale_factor=(1.3, 0.6), mode="bilinear", recompute_scale_factor=True
            ),
        },
    ),
    "resize 1d": Group(
        (CONV[1],),
        {
            "nearest": lambda x: F.interpolate(x, scale_factor=1.5),
            "nearest-exact": lambda x: F.interpolate(x, 7, mode="nearest-exact"),
            "linear": lambda x: F.interpolate(x, scale_factor=1.5, mode="linear"),
        },
    ),
    "resize 3d": Group(
        (CONV[3],),
        {
            "nearest": lambda x: F.interpolate(x, scale_factor=(2, 1.5, 1)),
            "nearest-exact": lambda x: F.interpolate(x, (3, 7, 4), mode="nearest-exact"),
            "trilinear": lambda x: F.interpolate(x, scale_factor=(2, 1.5, 0.7), mode="trilinear"),
        },
    ),
    "normalisation": Group(
        (CONV[2],),
        {
            "batch": nn.BatchNorm2d(4),
            "batch, plain": nn.BatchNorm2d(4, affine=False, eps=0.1),
            "batch, no statistics": nn.BatchNorm2d(4, track_running_stats=False),
            "instance": nn.InstanceNorm2d(4, affine=True),
            "instance, statistics": nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
            "group": nn.GroupNorm(2, 4, eps=0.1),
            "layer": nn.LayerNorm((7, 6)),
            "layer, plain": nn.LayerNorm(6, elementwise_affine=False),
            "rms": nn.RMSNorm(6),
            "local response": nn.LocalResponseNorm(3, alpha=0.1, beta=0.75, k=1.5),
            "normalize": lambda x: F.normalize(x, dim=1),
        },
    ),
    "activations": Group(
        ((3, 2, 5),),
        {
            "relu": nn.ReLU(),
            "relu in place": lambda x: F.relu_(x + 1),
            "relu6": nn.ReLU6(),
            "hardtanh": nn.Hardtanh(-0.5, 0.7),
            "clamp": lambda x: x.clamp(-0.5, 0.7),
            "clamp between bounds that cross": lambda x: x.clamp(0.7, -0.5) * x,
            "clamp from below": lambda x: x.clamp_min(0.1) + x.clamp(max=0.3) + x.clamp(min=x.mean()),
            "leaky_relu": nn.LeakyReLU(0.2),
            "prelu": nn.PReLU(2),
            "prelu, one slope": nn.PReLU(),
            "elu": nn.ELU(0.7),
            "selu": nn.SELU(),
            "celu": nn.CELU(0.5),
            "silu": nn.SiLU(inplace=False),
            "gelu": nn.GELU(),
            "gelu, tanh": nn.GELU("tanh"),
            "sigmoid": nn.Sigmoid(),
            "tanh": nn.Tanh(),
            "softplus": nn.Softplus(2.0),
            "softplus, low threshold": nn.Softplus(2.0, 0.5),
            "softsign": nn.Softsign(),
            "mish": nn.Mish(),
            "log_sigmoid": nn.LogSigmoid(),
            "tanhshrink": nn.Tanhshrink(),
            "threshold": nn.Threshold(0.0, 0.0),
            "threshold, another value": nn.Threshold(0.2, 7.0),
            "glu": nn.GLU(1),
            "softmax": nn.Softmax(1),
            "softmin": nn.Softmin(-1),
            "log_softmax": nn.LogSoftmax(-1),
            "dropout": nn.Dropout(0.5),
            "dropout2d": nn.Dropout1d(0.5),
            "alpha_dropout": nn.AlphaDropout(0.5),
        },
    ),
    "arithmetic": Group(
        ((2, 3, 4), (3, 1), ()),
        {
            "add": lambda x, y, s: torch.add(x, y, alpha=3) + s + 2,
            "sub": lambda x, y, s: torch.sub(x, y, alpha=3) - s - 2.5,
            "rsub": lambda x, y, s: 3 - x + torch.rsub(x, y, alpha=2),
            "mul": lambda x, y, s: x * y * s * 0.5,
            "div": lambda x, y, s: x / y / 3 + 2 / y,
            "neg": lambda x, y, s: -x + y.abs(),
            "maximum": lambda x, y, s: torch.maximum(x, y) + torch.max(y, s) + torch.minimum(x, y),
            "square": lambda x, y, s: x.square() + y**3 + y**-2 + x**1 + y**0,
            "power": lambda x, y, s: x.abs() ** 1.5 + y.exp().pow(0.25) + 2**x,
            "roots": lambda x, y, s: x.abs().sqrt() + y.exp().rsqrt() + s.reciprocal(),
            "exp": lambda x, y, s: x.exp() + y.expm1() + (1 + s.abs()).log(),
            "addcmul": lambda x, y, s: torch.addcmul(x, y, s, value=2) + torch.addcdiv(x, y, s),
            "lerp": lambda x, y, s: torch.lerp(x, x * y, 0.3),
            "sign": lambda x, y, s: x.sign() * y,
            "roundings": lambda x, y, s: (
                x * (y.floor() + 2 * y.ceil() - 5 * x.round() + 7 * (3 * x).trunc()) + x.frac()
            ),
            "roundings to decimals": lambda x, y, s: (
                y * torch.round(x, decimals=1) + y * torch.round(9 * x, decimals=-1)
            ),
            "erf": lambda x, y, s: torch.erf(x) + torch.erfc(3 * y),
            "inverse": lambda x, y, s: torch.atan(x) + torch.asinh(y) + torch.acosh(torch.exp(s) + 1),
            "hyperbolic": lambda x, y, s: torch.sinh(x) + torch.cosh(y) * torch.exp2(s),
            "of numbers": lambda x, y, s: torch.fmax(x, y) * torch.fmin(y, s),
            "quotients": lambda x, y, s: x * torch.div(9 * x, y, rounding_mode="trunc"),
            "powers": lambda x, y, s: x.abs() ** y + torch.log2(y.exp()) * x.exp().log10(),
            "sines": lambda x, y, s: torch.sin(9 * x) + torch.cos(y) * torch.tan(s),
            "in place": lambda x, y, s: added_in_place(x),
            "constants": lambda x, y, s: (
                x
                + torch.arange(4)
                + torch.full((3, 1), 0.5)
                + torch.zeros_like(y)
                + torch.ones(4, dtype=torch.float64) * torch.tensor([1.0, 2, 3, 4])
                + x.new_full((4,), 7)
            ),
        },
    ),
    "reductions": Group(
        ((2, 3, 4),),
        {
            "sum": lambda x: x.sum() + x.sum(1, keepdim=True) + x.sum((0, -1), keepdim=True),
            "mean": lambda x: x.mean() + x.mean(-1, True) + x.mean((0, 1)),
            "running": lambda x: x.cumsum(1) + x.cumprod(-1) * x.cumsum(0, dtype=torch.float64),
            "running extremes": lambda x: x.cummax(1).values * x.cummin(0).values,
            "in the middle": lambda x: (x.median(1), x.median(), x.kthvalue(2, 0, keepdim=True)),
            "prod": lambda x: x.prod() + x.prod(1, keepdim=True) + (x * (x > 0)).prod(2, keepdim=True),
            "amax": lambda x: x.amax(1) + x.amin((1,)) + x.max() + x.min(),
            "max of an axis": lambda x: x.max(2).values + x.min(2, keepdim=True).values.squeeze(2),
            "logsumexp": lambda x: x.logsumexp((0, 2)),
            "var": lambda x: x.var(1) + x.var((0, 1), correction=0) + x.std(1),
            "norm": lambda x: torch.linalg.vector_norm(x, dim=1) * x.norm(-inf, 0).sum() + x.norm(0, 1),
            "places": lambda x: (x.max(1), x.min(2, keepdim=True), x.argmax(), x.argmin(0, keepdim=True)),
            "truth": lambda x: ((x > 1).any(), (x > -1).all(2), (x > 0).any(1, keepdim=True), (x > 0).sum(0)),
        },
    ),
    "layout": Group(
        ((2, 6, 4, 4),),
        {
            "view": lambda x: x.view(2, -1).reshape(4, 48).unflatten(1, (3, -1)),
            "flatten": lambda x: x.flatten(1, 2).flatten(),
            "squeeze none": lambda x: x[:1].squeeze(()),
            "squeeze": lambda x: (
                x[:1].squeeze() + x[:1].squeeze(0) + x[:1].squeeze((0, 1)) + x[:1, :, :, 0].unsqueeze(-1)
            ),
            "expand": lambda x: x[:, :1].expand(-1, 6, 4, 4) + x[:1].expand_as(x) + x[0, 0].expand(2, 6, -1, -1),
            "permute": lambda x: x.permute(0, -1, 1, 2) + x.movedim(3, 1) + x.transpose(1, 3).transpose(2, 3),
            "matrix": lambda x: x[0, 0].t() + x[0, 1].T + x[0].mT[2],
            "cat": lambda x: torch.cat([x, x[:, :2], x[:, :0]], 1),
            "stack": lambda x: torch.stack([x, 2 * x], -1),
            "split, first axis": lambda x: x.split([1, 1])[1] + x.split(1)[0] * x.split_with_sizes([2])[0],
            "split": lambda x: x.split(4, 1)[0] + x.split([4, 2], 1)[0] + x.chunk(2, 1)[1].repeat(1, 2, 1, 1)[:, :4],
            "unbind": lambda x: x.unbind(-1)[2] + x.unbind(2)[-1],
            "slice": lambda x: (
                x[:, 1:-1:2, ..., -1] + x.select(2, -2)[:, ::3].sum(1, True) + x.narrow(3, -2, 1)[:, :1, :, 0]
            ),
            "indices": lambda x: x[:, [5, 0, 3]] + x.index_select(1, torch.tensor([1, 1, 2])),
            "grid of indices": lambda x: x[:, :, torch.tensor([[3], [0]]), torch.tensor([2, 2, 1])],
            "flip": lambda x: x.flip(1, -1) + x.roll(1, 2) + x.roll((5, -1), (1, 3)) + x.roll(7),
            "repeat": lambda x: (
                x.repeat(2, 1, 1, 1, 3)[0][..., :4] + x.tile(3).sum() + x.repeat_interleave(2, 1)[:, ::2]
            ),
            "pad": lambda x: F.pad(x, (1, 2, 0, 3), value=7.0),
            "pad, negative": lambda x: F.pad(x, (-1, 2, 1, -1, 0, -2)),
            "pad, reflect": lambda x: F.pad(x, (1, 2, 0, 3), "reflect"),
            "pad, replicate": nn.ReplicationPad2d((1, 5, 0, 2)),
            "pad, circular": nn.CircularPad2d((1, 4, 0, 2)),
            "zero pad": nn.ZeroPad2d(1),
            "channel_shuffle": lambda x: F.channel_shuffle(x, 3),
            "pixel_shuffle": lambda x: F.pixel_shuffle(x[:, :4], 2),
            "pixel_unshuffle": nn.PixelUnshuffle(2),
            "clone": lambda x: x.clone().contiguous(),
            "scatter": lambda x: x.slice_scatter(x[:, :2] * 3, 1, 1, 3) + x.select_scatter(x[:, 0], 1, -1),
        },
    ),
    "pad 1d and 3d": Group(
        ((2, 3, 4, 5),),
        {
            "reflect 1d": lambda x: F.pad(x[0], (2, 3), "reflect"),
            "replicate 1d": nn.Sequential(nn.Flatten(2), nn.ReplicationPad1d((0, 2))),
            "reflect 3d": lambda x: F.pad(x[None], (1, 1, 2, 0, 1, 0), "reflect"),
            "replicate 3d": lambda x: F.pad(x[None], (1, 1, 2, 0, 1, 0), "replicate"),
            "circular 1d": lambda x: F.pad(x[0], (2, 3), "circular"),
        },
    ),
    "matrices": Group(
        ((2, 3, 4), (4, 5), (2, 4, 5)),
        {
            "linear": lambda x, a, b: F.linear(x, a.t()),
            "linear, vector": lambda x, a, b: F.linear(x[0, 0], a.t(), a[0]),
            "mm": lambda x, a, b: x[0] @ a + torch.mm(x[1], a),
            "addmm": lambda x, a, b: torch.addmm(a[:3], x[0], a, beta=0.5, alpha=2.0) + torch.addmm(a[0], x[0], a),
            "bmm": lambda x, a, b: torch.bmm(x, b) + x @ a + torch.baddbmm(b[:, :3], x, b),
            "vectors": lambda x, a, b: x[0, 0] @ a + (a.t() @ x[0, 0]) + torch.dot(x[0, 0], a[:, 0]),
            "addbmm": lambda x, a, b: torch.addbmm(a[:3], x, b, beta=0.5, alpha=2.0),
            "diagonal": lambda x, a, b: (x.diagonal(1, 2, 0), torch.diag(a, -1), a.diagonal(9), torch.trace(a)),
        },
    ),
    "attention": Group(  # of three axes: PyTorch's fused kernel, for four, has no forward derivative
        ((4, 3, 5), (2, 6, 5)),
        {
            "of itself": lambda x, y: F.scaled_dot_product_attention(x, x, x),
            "causal": lambda x, y: F.scaled_dot_product_attention(x[:2], y, y, is_causal=True, scale=0.3),
            "heads for several": lambda x, y: F.scaled_dot_product_attention(x, y, y.square(), enable_gqa=True),
            "masked": lambda x, y: F.scaled_dot_product_attention(x[:2], y, y, MASK),
            "biased": lambda x, y: F.scaled_dot_product_attention(x[0], y[0], y[1], MASK.double().log() + x[1, 0, 0]),
        },
    ),
    "losses": Group(
        ((4, 5), (4, 5), torch.tensor([1, 0, 4, 4])),
        {
            "mse": lambda x, y, t: F.mse_loss(x, y) + F.mse_loss(x, y, reduction="sum"),
            "l1": lambda x, y, t: F.l1_loss(x, y),
            "cross_entropy": lambda x, y, t: F.cross_entropy(x, t) + F.cross_entropy(y, t, reduction="none"),
            "weights": lambda x, y, t: tuple(
                F.cross_entropy(x, t, WEIGHTS, reduction=how) for how in ("none", "mean", "sum")
            ),
            "smoothing": lambda x, y, t: tuple(
                F.cross_entropy(x, t, WEIGHTS, reduction=how, label_smoothing=0.3) for how in ("none", "mean", "sum")
            ),
            "smoothing without weights": lambda x, y, t: F.cross_entropy(x, t, label_smoothing=0.1),
            "ignored": lambda x, y, t: tuple(
                F.cross_entropy(x, t, w, ignore_index=4, reduction=how, label_smoothing=smoothing)
                for w in (None, WEIGHTS)
                for how in ("none", "mean", "sum")
                for smoothing in (0.0, 0.2)
            ),
            "none of the classes": lambda x, y, t: (
                F.cross_entropy(x, torch.where(t == 4, -100, t))
                + F.nll_loss(x, torch.where(t == 0, 9, t), ignore_index=9)
            ),
            "shares": lambda x, y, t: tuple(
                F.cross_entropy(x, y.softmax(1), w, reduction=how, label_smoothing=smoothing)
                for w in (None, WEIGHTS)
                for how in ("none", "mean", "sum")
                for smoothing in (0.0, 0.2)
            ),
            "planes": lambda x, y, t: F.cross_entropy(
                x.reshape(2, 5, 2), t.reshape(2, 2), WEIGHTS, ignore_index=0, label_smoothing=0.1
            ),
            "one sample": lambda x, y, t: F.cross_entropy(x[0], t[0], WEIGHTS, label_smoothing=0.1),
            "nll, weights": lambda x, y, t: (
                F.nll_loss(x, t, WEIGHTS, ignore_index=1) + F.nll_loss(x, t, WEIGHTS, reduction="none")
            ),
            "nll": lambda x, y, t: F.nll_loss(F.log_softmax(x, 1), t) + F.nll_loss(y, t, reduction="sum"),
        },
    ),
    "places": Group(
        ((5, 3), torch.tensor([[4, 0], [0, 2]])),
        {
            "embedding": lambda x, n: F.embedding(n, x),
            "gather": lambda x, n: x[:2].gather(1, (n > 0).to(torch.int64)),
        },
    ),
    "dtypes": Group(
        ((2, 3), torch.arange(6).reshape(2, 3)),
        {
            "promoted": lambda x, n: x + n,
            "single and double": lambda x, n: x.float() * x + (x.float() + torch.tensor(2.0, dtype=torch.float64)),
            "integers to floats": lambda x, n: n.to(torch.float64) * x + n / 4,
            "concatenated": lambda x, n: torch.cat([x, n, x.float()]),
            "like another": lambda x, n: n.type_as(x) + n.to(x),
            "half": lambda x, n: x.half().float(),
            "integers": lambda x, n: n * 3 - n + n.sum(1, keepdim=True),
        },
    ),
}
"""What is read operator by operator, as it was exported."""

OTHERS: dict[str, Group] = {
    "rounded": Group(
        ((3, 2, 5),),
        {"hardsigmoid": nn.Hardsigmoid(), "hardswish": nn.Hardswish(), "logcumsumexp": lambda x: x.logcumsumexp(1)},
        slack=2.0**-22,  # PyTorch has 1/6 rounded to float32 in derivatives, and loses digits in the last one's
    ),
    "by decomposition": Group(
        ((2, 3, 4), (2, 4, 5)),
        {
            "einsum": lambda x, a: torch.einsum("nij,njk->nik", x, a),
            "hstack": lambda x, a: torch.hstack([x, x]) + torch.vstack([x[:1], x[1:]]).repeat(1, 2, 1),
            "tensor_split": lambda x, a: x.tensor_split(3, 2)[1] + x.tensor_split((1, 3), 2)[1][..., :1],
            "split": lambda x, a: (x.hsplit(3)[0] * x.vsplit(2)[1], x.dsplit([1, 3])[1]),
            "shaped like": lambda x, a: x.reshape_as(x.mT) * x.view_as(x[:, 0:].reshape(2, 4, 3)) * x.ravel().sum(),
            "broadcast": lambda x, a: x.broadcast_to(5, 2, 3, 4) * sum(torch.broadcast_tensors(x, x[:1, :1])),
            "unflatten": lambda x, a: x.unflatten(2, (2, -1)).swapaxes(0, 3) + x[0, 0, 0].expand(2, 3, 2, 2),
            "axes moved": lambda x, a: x.moveaxis(0, 2) * x.movedim((0, 1), (2, 0)) * x.swapdims(0, 1).mT.adjoint().mT,
            "more axes": lambda x, a: torch.atleast_3d(x[0]) * torch.atleast_2d(x[0, :, 0]).T[..., None],
            "products": lambda x, a: (torch.kron(x[0], x[1]), torch.cross(x, x.flip(0), dim=1), torch.diff(x)),
            "written to by a decomposition": lambda x, a: (x[0] * 2).addr_(x[0, :, 0], x[1, 0]),
            "smooth_l1": lambda x, a: F.smooth_l1_loss(x, x.square()) + F.huber_loss(x, x.square()),
            "hardshrink": lambda x, a: F.hardshrink(x, 0.3) + F.softshrink(x, 0.3),
            "cosine": lambda x, a: F.cosine_similarity(x, x.flip(1), dim=1),
        },
    ),
}
"""What is less exact in PyTorch, or read only as PyTorch makes it of other operators."""

WRITES: dict[str, Group] = {
    "shared memory": Group(
        ((2, 3, 4),),
        {
            "through a view": written_through_a_view,
            "through a view of a decomposition": lambda x: written_through_a_view(x.reshape_as(x)),
        },
    )
}
"""What is read only after PyTorch has undone writes to shared memory."""
