"""What one changed import does to training: PyTorch networks on ``torch.nn.functional`` and on ``gradspec.torch``.

    python benchmarks/torch_training.py

A step is a forward pass with the cross entropy, a backward pass and Adam, on random images of one size. The contenders
take turns of a few steps, in one process and with as many threads each: PyTorch in its default layout, PyTorch with
images and weights in channels_last memory, and gradspec. Times are medians in milliseconds; the ratio is the median of
the turns' ratios. Let nothing else run beside it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import click
import torch
import torch.nn.functional as plain

import gradspec as gs
import gradspec.torch

PARTS = ("forward", "backward", "optimizer")


# --- networks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """Shapes of the images and of the weights, and the logits as a function of ``F``, the images and the parameters."""

    images: tuple[int, ...]
    weights: list[tuple[int, ...]]
    logits: Callable[..., Any]


def lenet5(F, x, p):  # noqa: N803
    x = F.max_pool2d(F.relu(F.conv2d(x, *p[0], padding=2)), 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, *p[1])), 2)
    x = F.relu(F.linear(x.flatten(1), *p[2]))
    return F.linear(F.relu(F.linear(x, *p[3])), *p[4])


def wider(F, x, p):  # noqa: N803
    for i in (0, 2):
        x = F.relu(F.conv2d(x, *p[i], padding=1))
        x = F.max_pool2d(F.relu(F.conv2d(x, *p[i + 1], padding=1)), 2)
    return F.linear(F.relu(F.linear(x.flatten(1), *p[4])), *p[5])


def separable(F, x, p):  # noqa: N803
    x = F.relu(F.conv2d(x, *p[0], stride=2, padding=1))
    for i in (1, 3, 5):
        x = F.relu(F.conv2d(x, *p[i], padding=1, groups=x.shape[1]))
        x = F.relu(F.conv2d(x, *p[i + 1]))
    return F.linear(F.avg_pool2d(x, 16).flatten(1), *p[7])


def perceptron(F, x, p):  # noqa: N803
    x = x.flatten(1)
    for pair in p[:-1]:
        x = F.relu(F.linear(x, *pair))
    return F.linear(x, *p[-1])


NETWORKS = {
    "LeNet-5, batch 64": Network(
        (64, 1, 28, 28), [(6, 1, 5, 5), (16, 6, 5, 5), (120, 400), (84, 120), (10, 84)], lenet5
    ),
    "4 convolutions of 32 to 64 channels, 32×32, batch 32": Network(
        (32, 3, 32, 32),
        [(32, 3, 3, 3), (32, 32, 3, 3), (64, 32, 3, 3), (64, 64, 3, 3), (256, 4096), (10, 256)],
        wider,
    ),
    "7 separable convolutions, 32×32, batch 32": Network(
        (32, 3, 32, 32),
        [(32, 3, 3, 3), (32, 1, 3, 3), (64, 32, 1, 1), (64, 1, 3, 3), (64, 64, 1, 1), (64, 1, 3, 3), (64, 64, 1, 1),
         (10, 64)],
        separable,
    ),
    "3 linear layers of 512, batch 64": Network(
        (64, 1, 28, 28), [(512, 784), (512, 512), (512, 512), (10, 512)], perceptron
    ),
}  # fmt: skip


# --- training ---------------------------------------------------------------------------------------------------------


class Training:
    """A network with its optimizer; equal at the beginning for every contender."""

    def __init__(self, network, functions, memory_format):
        random = torch.Generator().manual_seed(0)
        self.network, self.functions = network, functions
        self.images = _laid_out(torch.randn(network.images, generator=random), memory_format)
        self.labels = torch.randint(10, network.images[:1], generator=random)
        self.params = [
            (_laid_out(torch.randn(shape, generator=random) * (2 / shape[1:].numel()) ** 0.5, memory_format),
             torch.zeros(shape[0]))
            for shape in map(torch.Size, network.weights)
        ]  # fmt: skip
        tensors = [t.requires_grad_() for pair in self.params for t in pair]
        self.optimizer = torch.optim.Adam(tensors, 1e-4)
        self.loss = float("nan")

    def step(self):
        """Seconds of the three parts."""
        times = [time.perf_counter()]
        self.optimizer.zero_grad()
        loss = self.functions.cross_entropy(self.network.logits(self.functions, self.images, self.params), self.labels)
        times.append(time.perf_counter())
        loss.backward()
        times.append(time.perf_counter())
        self.optimizer.step()
        times.append(time.perf_counter())
        self.loss = loss.item()
        return [after - before for before, after in pairwise(times)]


def _laid_out(tensor, memory_format):
    return tensor.to(memory_format=memory_format) if tensor.ndim == 4 else tensor


CONTENDERS = {
    "torch": (plain, torch.contiguous_format),
    "torch channels last": (plain, torch.channels_last),
    "gradspec.torch": (gradspec.torch, torch.contiguous_format),
}


def measured(network, turns, steps):
    """For each contender the parts of its steps, by turn, after one turn that does not count; and the last losses."""
    trainings = {name: Training(network, *how) for name, how in CONTENDERS.items()}
    found = {name: [] for name in CONTENDERS}
    for turn in range(turns + 1):
        for name, training in trainings.items():
            parts = [training.step() for _ in range(steps)]
            if turn:
                found[name].append([median(column) for column in zip(*parts, strict=True)])
    return found, {name: training.loss for name, training in trainings.items()}


@click.command(context_settings={"show_default": True})
@click.option("--turns", default=15, help="Turns of each contender.")
@click.option("--steps", default=5, help="Steps in a turn.")
@click.option("--threads", default=gs.get_num_threads(), help="For PyTorch and for gradspec.")
def main(turns, steps, threads):
    """Print the time of a training step and of its parts."""
    torch.set_num_threads(threads)
    gs.set_num_threads(threads)
    for title, network in NETWORKS.items():
        found, losses = measured(network, turns, steps)
        click.echo(f"\n{title}\n{'':>20}  {'step':>8}  {'   '.join(f'{part:>9}' for part in PARTS)}    speed      loss")
        for name, parts in found.items():
            ratios = [sum(theirs) / sum(ours) for theirs, ours in zip(found["torch"], parts, strict=True)]
            step, *columns = (1e3 * median(times) for times in zip(*((sum(p), *p) for p in parts), strict=True))
            row = "   ".join(f"{column:9.2f}" for column in columns)
            click.echo(f"{name:>20}  {step:8.2f}  {row}    {median(ratios):4.2f}x  {losses[name]:8.5f}")


if __name__ == "__main__":
    main()
