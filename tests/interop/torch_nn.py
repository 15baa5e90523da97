"""An example of every module and function of ``torch.nn``: how it is made, and what it is given."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

GENERATOR = torch.Generator().manual_seed(0)


def floats(*shape: int) -> Tensor:
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64)


X = {1: floats(2, 4, 6), 2: floats(2, 4, 6, 5), 3: floats(1, 4, 4, 5, 6)}
"""Batches of every rank."""

ROWS, OTHER, THIRD, SHARES = floats(3, 5), floats(3, 5), floats(3, 5), floats(3, 5).sigmoid()
CLASSES, BITS, SIGNS = torch.tensor([4, 0, 1]), (OTHER > 0).double(), THIRD[:, 0].sign()
STEPS, CELL = floats(4, 2, 5), floats(2, 3)
ATTENDED, QUERY = floats(5, 2, 4), floats(3, 2, 4)
WORDS = torch.tensor([[1, 4], [0, 2]])


def per_rank(
    name: str, ranks: str, *args: Any, **kwargs: Any
) -> dict[str, tuple[Callable[[], Any], tuple[Tensor, ...]]]:
    return {f"{name}{r}d": (lambda r=r: getattr(nn, f"{name}{r}d")(*args, **kwargs), (X[int(r)],)) for r in ranks}


def of(given: tuple[Tensor, ...], **made: Callable[[], Any]) -> dict[str, tuple[Callable[[], Any], tuple[Tensor, ...]]]:
    """Modules or functions of the same inputs."""
    return {name: (make, given) for name, make in made.items()}


def named(given: tuple[Tensor, ...], names: str) -> dict[str, tuple[Callable[[], Any], tuple[Tensor, ...]]]:
    return of(given, **{name: getattr(nn, name) for name in names.split()})


def winners(rank: int) -> tuple[Tensor, Tensor]:
    """Of planes that poolings cover."""
    planes = X[rank][(..., *[slice(4)] * rank)]
    values, places = getattr(F, f"max_pool{rank}d")(planes, 2, return_indices=True)
    return values, places


MODULES = {
    **per_rank("AdaptiveAvgPool", "123", 3),
    **per_rank("AdaptiveMaxPool", "123", 3),
    **per_rank("AvgPool", "123", 2),
    **per_rank("MaxPool", "123", 2),
    **per_rank("LPPool", "123", 2, 2),
    **per_rank("BatchNorm", "123", 4),
    **per_rank("InstanceNorm", "123", 4),
    **per_rank("LazyBatchNorm", "123"),
    **per_rank("LazyInstanceNorm", "123"),
    **per_rank("Conv", "123", 4, 3, 3),
    **per_rank("ConvTranspose", "123", 4, 3, 3, 2),
    **per_rank("LazyConv", "123", 3, 3),
    **per_rank("LazyConvTranspose", "123", 3, 3),
    **per_rank("CircularPad", "123", 1),
    **per_rank("ConstantPad", "123", 1, 3.5),
    **per_rank("ReflectionPad", "123", 1),
    **per_rank("ReplicationPad", "123", 1),
    **per_rank("ZeroPad", "123", 1),
    **per_rank("Dropout", "123"),
    **per_rank("FractionalMaxPool", "23", 2, output_size=2),
    **named(
        (ROWS,),
        "AlphaDropout CELU Dropout ELU Flatten GELU Hardshrink Hardsigmoid Hardswish Hardtanh Identity LeakyReLU "
        "LogSigmoid Mish PReLU RReLU ReLU ReLU6 SELU SiLU Sigmoid Softplus Softshrink Softsign Tanh Tanhshrink",
    ),
    **of(
        (ROWS,),
        GLU=lambda: nn.Sequential(nn.ZeroPad1d((0, 1)), nn.GLU()),
        LayerNorm=lambda: nn.LayerNorm(5),
        LazyLinear=lambda: nn.LazyLinear(2),
        Linear=lambda: nn.Linear(5, 2),
        LogSoftmax=lambda: nn.LogSoftmax(1),
        RMSNorm=lambda: nn.RMSNorm(5),
        Sequential=lambda: nn.Sequential(nn.Linear(5, 3), nn.ReLU()),
        Softmax=lambda: nn.Softmax(1),
        Softmin=lambda: nn.Softmin(1),
        Threshold=lambda: nn.Threshold(0.1, 20.0),
        Unflatten=lambda: nn.Unflatten(1, (5, 1)),
    ),
    **of(
        (X[2],),
        ChannelShuffle=lambda: nn.ChannelShuffle(2),
        CrossMapLRN2d=lambda: nn.CrossMapLRN2d(3),
        FeatureAlphaDropout=nn.FeatureAlphaDropout,
        GroupNorm=lambda: nn.GroupNorm(2, 4),
        LocalResponseNorm=lambda: nn.LocalResponseNorm(3),
        PixelShuffle=lambda: nn.PixelShuffle(2),
        PixelUnshuffle=lambda: nn.Sequential(nn.ZeroPad2d((0, 1)), nn.PixelUnshuffle(2)),
        Softmax2d=nn.Softmax2d,
        SyncBatchNorm=lambda: nn.SyncBatchNorm(4),
        Unfold=lambda: nn.Unfold(2),
        Upsample=lambda: nn.Upsample(scale_factor=2),
        UpsamplingBilinear2d=lambda: nn.UpsamplingBilinear2d(scale_factor=2),
        UpsamplingNearest2d=lambda: nn.UpsamplingNearest2d(scale_factor=2),
    ),
    **of((floats(2, 8, 4),), Fold=lambda: nn.Fold((3, 3), 2)),
    **of(winners(1), MaxUnpool1d=lambda: nn.MaxUnpool1d(2)),
    **of(winners(2), MaxUnpool2d=lambda: nn.MaxUnpool2d(2)),
    **of(winners(3), MaxUnpool3d=lambda: nn.MaxUnpool3d(2)),
    **named(
        (ROWS, OTHER),
        "CosineSimilarity HuberLoss L1Loss MSELoss PairwiseDistance SmoothL1Loss",
    ),
    **named((ROWS, BITS), "BCEWithLogitsLoss MultiLabelSoftMarginLoss"),
    **named((ROWS, 2 * BITS - 1), "HingeEmbeddingLoss SoftMarginLoss"),
    **named((SHARES, BITS), "BCELoss PoissonNLLLoss"),
    **named((SHARES.log(), SHARES), "KLDivLoss"),
    **named((ROWS, CLASSES), "CrossEntropyLoss MultiMarginLoss NLLLoss"),
    **named((X[2], (X[2][:, 0] > 0).long()), "NLLLoss2d"),
    **named((ROWS, torch.tensor([[3, 0, -1, 1, 1], [2, 1, 0, -1, 3], [-1, 0, 0, 0, 0]])), "MultiLabelMarginLoss"),
    **named((ROWS, OTHER, SHARES), "GaussianNLLLoss"),
    **named((ROWS, OTHER, THIRD), "TripletMarginLoss TripletMarginWithDistanceLoss"),
    **named((ROWS, OTHER, SIGNS), "CosineEmbeddingLoss"),
    **named((ROWS[:, 0], OTHER[:, 0], SIGNS), "MarginRankingLoss"),
    **of((ROWS, OTHER), Bilinear=lambda: nn.Bilinear(5, 5, 2)),
    **of((ROWS, CLASSES), AdaptiveLogSoftmaxWithLoss=lambda: nn.AdaptiveLogSoftmaxWithLoss(5, 6, [2, 4])),
    **of((ROWS, CLASSES), LinearCrossEntropyLoss=lambda: nn.LinearCrossEntropyLoss(5, 6)),
    **of(
        (floats(6, 2, 5).log_softmax(2), torch.tensor([[1, 2], [3, 3]]), torch.tensor([6, 5]), torch.tensor([2, 1])),
        CTCLoss=nn.CTCLoss,
    ),
    **of((WORDS,), Embedding=lambda: nn.Embedding(5, 3), EmbeddingBag=lambda: nn.EmbeddingBag(5, 3)),
    **of((STEPS,), RNN=lambda: nn.RNN(5, 3), LSTM=lambda: nn.LSTM(5, 3, 2), GRU=lambda: nn.GRU(5, 3)),
    **of((STEPS[0], CELL), RNNCell=lambda: nn.RNNCell(5, 3), GRUCell=lambda: nn.GRUCell(5, 3)),
    **of((STEPS[0],), LSTMCell=lambda: nn.LSTMCell(5, 3)),
    **of((ATTENDED, ATTENDED, ATTENDED), MultiheadAttention=lambda: nn.MultiheadAttention(4, 2)),
    **of(
        (ATTENDED, QUERY),
        Transformer=lambda: nn.Transformer(4, 2, 1, 1, 8),
        TransformerDecoder=lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8), 1),
        TransformerDecoderLayer=lambda: nn.TransformerDecoderLayer(4, 2, 8),
    ),
    **of(
        (ATTENDED,),
        TransformerEncoder=lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 1),
        TransformerEncoderLayer=lambda: nn.TransformerEncoderLayer(4, 2, 8),
    ),
}
"""How a module is made, and what it is given."""

NOT_CALLED = {
    *("Container", "Module", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "RNNBase", "RNNCellBase"),
    "LinearCrossEntropyOptions",
}
"""Modules that hold others, or that others are made of."""


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "adaptive_max_pool1d_with_indices": (lambda x: F.adaptive_max_pool1d_with_indices(x, 3), (X[1],)),
    "adaptive_max_pool2d_with_indices": (lambda x: F.adaptive_max_pool2d_with_indices(x, 3), (X[2],)),
    "adaptive_max_pool3d_with_indices": (lambda x: F.adaptive_max_pool3d_with_indices(x, 3), (X[3],)),
    "affine_grid": (lambda x: F.affine_grid(x, (2, 1, 3, 4), align_corners=False), (floats(2, 2, 3),)),
    "batch_norm": (lambda x, m: F.batch_norm(x, m[0], m[1].exp()), (X[2], floats(2, 4))),
    "binary_cross_entropy": (F.binary_cross_entropy, (SHARES, BITS)),
    "binary_cross_entropy_with_logits": (
        lambda x, y: F.binary_cross_entropy_with_logits(x, y, pos_weight=y[0]),
        (ROWS, SHARES),
    ),
    "celu_": (lambda x: F.celu_(x * 2), (ROWS,)),
    "conv_tbc": (lambda x, w: F.conv_tbc(x, w, w[0, 0]), (floats(6, 2, 3), floats(3, 3, 4))),
    "elu_": (lambda x: F.elu_(x * 2), (ROWS,)),
    "fractional_max_pool2d_with_indices": (lambda x: F.fractional_max_pool2d_with_indices(x, 2, 2), (X[2],)),
    "fractional_max_pool3d_with_indices": (lambda x: F.fractional_max_pool3d_with_indices(x, 2, 2), (X[3],)),
    "grid_sample": (lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False), (X[2], floats(2, 3, 4, 2))),
    "gumbel_softmax": (F.gumbel_softmax, (ROWS,)),
    "hardtanh_": (lambda x: F.hardtanh_(x * 2), (ROWS,)),
    "instance_norm": (F.instance_norm, (X[2],)),
    "interpolate": (lambda x: F.interpolate(x, (9, 8), mode="bilinear"), (X[2],)),
    "leaky_relu_": (lambda x: F.leaky_relu_(x * 2), (ROWS,)),
    "max_pool1d_with_indices": (lambda x: F.max_pool1d_with_indices(x, 2), (X[1],)),
    "max_pool2d_with_indices": (lambda x: F.max_pool2d_with_indices(x, 2), (X[2],)),
    "max_pool3d_with_indices": (lambda x: F.max_pool3d_with_indices(x, 2), (X[3],)),
    "multi_head_attention_forward": (nn.MultiheadAttention(4, 2).double().eval(), (ATTENDED, ATTENDED, ATTENDED)),
    "native_channel_shuffle": (lambda x: F.native_channel_shuffle(x, 2), (X[2],)),
    "normalize": (F.normalize, (ROWS,)),
    "one_hot": (lambda n: F.one_hot(n, 5), (CLASSES,)),
    "pad": (lambda x: F.pad(x, (1, 2)), (ROWS,)),
    "pdist": (F.pdist, (ROWS,)),
    "relu_": (lambda x: F.relu_(x * 2), (ROWS,)),
    "rrelu_": (lambda x: F.rrelu_(x * 2), (ROWS,)),
    "scaled_dot_product_attention": (F.scaled_dot_product_attention, (ATTENDED, ATTENDED, ATTENDED)),
    "selu_": (lambda x: F.selu_(x * 2), (ROWS,)),
    "threshold_": (lambda x: F.threshold_(x * 2, 0.1, 3.0), (ROWS,)),
    "upsample_bilinear": (lambda x: F.upsample_bilinear(x, scale_factor=2), (X[2],)),
    "upsample_nearest": (lambda x: F.upsample_nearest(x, scale_factor=2), (X[2],)),
}
"""Functions that no module of a like name calls."""

NO_EXAMPLE = {
    *("assert_int_or_pair", "boolean_dispatch", "grouped_mm", "scaled_grouped_mm", "scaled_mm"),
    *({"scaled_addmm", "scaled_addmm_"} & {*dir(F)}),  # from PyTorch 2.15 on
}
"""What functions are made with, and products on the kernels of other devices."""


def called_by_modules(function: str) -> bool:
    """Whether a module of a like name calls it: ``l1_loss`` is ``L1Loss``, and ``nll_loss`` and ``kl_div`` alike."""
    plain = function.replace("_", "")
    return not function.endswith("_") and any(name.lower() in (plain, f"{plain}loss") for name in MODULES)
