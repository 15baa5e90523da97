"""Small networks of the well-known families in plain PyTorch, with random weights and statistics, ready to evaluate."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

SEED = 0


def settled(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """``make`` with the same random weights and running statistics at each call, in evaluation mode."""

    def maker() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            network = make()
            for module in network.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    _randomise(module)
        return network.eval()

    return maker


def _randomise(norm: nn.modules.batchnorm._BatchNorm) -> None:
    nn.init.normal_(norm.running_mean, std=0.1)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.normal_(norm.bias, std=0.1)


def conv_norm(c_in: int, c_out: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(c_out)]


# --- LeNet and VGG: one layer after the other ------------------------------------------------------------------------


def lenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Conv2d(4, 8, 5), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 10)),
    )


class VGG(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
            *(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(inplace=True)),
            *(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        )
        self.pool = nn.AdaptiveAvgPool2d(3)  # of 4 × 4: the bins overlap
        self.classifier = nn.Sequential(
            *(nn.Linear(72, 16), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(16, 10)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.pool(self.features(x)), 1))


# --- ResNet ----------------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*conv_norm(c_in, c_out, 3, stride), nn.ReLU(inplace=True), *conv_norm(c_out, c_out))
        changes = stride != 1 or c_in != c_out
        self.shortcut = nn.Sequential(*conv_norm(c_in, c_out, 1, stride)) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        y += self.shortcut(x)
        return torch.relu_(y)


def resnet() -> nn.Module:
    return nn.Sequential(
        *(*conv_norm(3, 4, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)),
        *(Residual(4, 4, 1), Residual(4, 8, 2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)),
    )


# --- U-Net -----------------------------------------------------------------------------------------------------------


class UNet(nn.Module):
    """Down by maxima, up by a transposed convolution and by interpolation, with a connection across at each level."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.Sequential(*conv_norm(1, 4), nn.ReLU())
        self.inner = nn.Sequential(*conv_norm(4, 8), nn.ReLU())
        self.bottom = nn.Sequential(*conv_norm(8, 8), nn.ReLU())
        self.up_inner = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.after_inner = nn.Sequential(*conv_norm(16, 4), nn.ReLU())
        self.up_outer = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.after_outer = nn.Sequential(*conv_norm(8, 4), nn.ReLU(), nn.Conv2d(4, 2, 1))
        self.down = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        outer = self.outer(x)
        inner = self.inner(self.down(outer))
        y = self.up_inner(self.bottom(self.down(inner)))
        y = self.up_outer(self.after_inner(torch.cat([y, inner], 1)))
        return self.after_outer(torch.cat([y, outer], dim=1))


# --- MobileNetV2 and EfficientNet: inverted bottlenecks --------------------------------------------------------------


class SqueezeExcite(nn.Module):
    """Channels scaled by what the mean of each says."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.scale = nn.Sequential(nn.Conv2d(channels, hidden, 1), nn.SiLU(), nn.Conv2d(hidden, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.scale(x.mean((2, 3), keepdim=True)))


class Inverted(nn.Module):
    """A depthwise convolution between two of kernel 1, with the input added where it fits."""

    def __init__(self, c_in: int, c_out: int, stride: int, activation: type[nn.Module], squeeze: bool) -> None:
        super().__init__()
        wide = 3 * c_in
        excite = [SqueezeExcite(wide, 2)] if squeeze else []
        self.body = nn.Sequential(
            *(*conv_norm(c_in, wide, 1), activation()),
            *(*conv_norm(wide, wide, 3, stride, groups=wide), activation()),
            *(*excite, *conv_norm(wide, c_out, 1)),
        )
        self.adds_input = stride == 1 and c_in == c_out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds_input else self.body(x)


def inverted_network(activation: type[nn.Module], squeeze: bool) -> nn.Module:
    return nn.Sequential(
        *(*conv_norm(3, 4, 3, 2), activation()),
        *(Inverted(4, 4, 1, activation, squeeze), Inverted(4, 6, 2, activation, squeeze)),
        *(*conv_norm(6, 12, 1), activation()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(12, 10)),
    )


TORCH: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "LeNet": (settled(lenet), (2, 1, 16, 16)),
    "VGG": (settled(VGG), (2, 3, 16, 16)),
    "ResNet": (settled(resnet), (2, 3, 24, 24)),
    "U-Net": (settled(UNet), (2, 1, 16, 16)),
    "MobileNetV2": (settled(lambda: inverted_network(nn.ReLU6, squeeze=False)), (2, 3, 16, 16)),
    "EfficientNet": (settled(lambda: inverted_network(nn.SiLU, squeeze=True)), (2, 3, 16, 16)),
}
"""The networks by name: what makes one, and the shape of its input."""
