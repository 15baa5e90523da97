"""Train a convolutional network in plain PyTorch, faster by one changed import.

The network is written with ``F``, which is ``torch.nn.functional`` in most programs. Here it is ``gradspec.torch``: the
same functions, with convolutions and pooling on gradspec's kernels. The rest is PyTorch's: parameters, linear layers,
loss, autograd and optimizer. The digits are those of ``train_lenet.py``.

    python examples/train_torch.py              # on gradspec's kernels
    python examples/train_torch.py --plain      # on PyTorch's own
    python examples/train_torch.py --compare    # both in turns: the same losses, and the time of a step
"""

import time
from statistics import median

import click
import numpy as np
import torch
import torch.nn.functional as plain

import gradspec as gs
import gradspec.torch as F  # noqa: N812  (instead of: import torch.nn.functional as F)
from train_lenet import draw

LAYERS = {"conv1": (16, 1, 5, 5), "conv2": (32, 16, 5, 5), "hidden": (128, 800), "out": (10, 128)}


def logits(params, x, F=F):  # noqa: N803
    """One number for each of ten digits, for images of shape (N, 1, 28, 28)."""
    x = F.max_pool2d(F.relu(F.conv2d(x, *params["conv1"], padding=2)), 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, *params["conv2"])), 2)
    x = F.relu(F.linear(x.flatten(1), *params["hidden"]))
    return F.linear(x, *params["out"])


class Training:
    """A network with its optimizer and its source of digits: two of one seed see and do the same."""

    def __init__(self, functions, batch, seed, rate):
        random = torch.Generator().manual_seed(seed)
        self.functions, self.batch, self.random = functions, batch, np.random.default_rng([seed, 0])
        self.params = {
            layer: [torch.randn(shape, generator=random) * (2 / np.prod(shape[1:])) ** 0.5, torch.zeros(shape[0])]
            for layer, shape in LAYERS.items()
        }
        tensors = [t.requires_grad_() for pair in self.params.values() for t in pair]
        self.optimizer = torch.optim.Adam(tensors, rate)
        self.losses, self.seconds = [], []

    def step(self):
        images, labels = map(torch.from_numpy, draw(self.batch, self.random))
        began = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.functions.cross_entropy(logits(self.params, images, self.functions), labels)
        loss.backward()
        self.optimizer.step()
        self.seconds.append(time.perf_counter() - began)
        self.losses.append(loss.item())

    def accuracy(self, count, seed):
        images, labels = map(torch.from_numpy, draw(count, np.random.default_rng([seed, 1])))
        with torch.no_grad():
            return (logits(self.params, images, self.functions).argmax(1) == labels).float().mean().item()

    def milliseconds(self):
        return 1e3 * median(self.seconds[len(self.seconds) // 10 :])


def report(name, training, held_out, seed):
    first, last = training.losses[0], np.mean(training.losses[-20:])
    click.echo(
        f"{name:>20}: loss {first:.3f} at first, {last:.3f} at last, accuracy {training.accuracy(held_out, seed):.2%}, "
        f"{training.milliseconds():.2f} ms a step"
    )


@click.command(context_settings={"show_default": True})
@click.option("--plain", "is_plain", is_flag=True, help="Use torch.nn.functional itself.")
@click.option("--compare", is_flag=True, help="Train with both, ten steps each in turns.")
@click.option("--steps", default=250, help="How many steps to train.")
@click.option("--batch", default=64, help="Images in a step.")
@click.option("--rate", default=0.001, help="Adam's learning rate.")
@click.option("--seed", default=0, help="Decides every random choice.")
@click.option("--held-out", default=2000, help="How many images to judge the result on.")
@click.option("--threads", default=gs.get_num_threads(), help="For PyTorch and for gradspec.")
def main(is_plain, compare, steps, batch, rate, seed, held_out, threads):
    """Train on digits drawn by this program, and print accuracy on new ones and the time of a step."""
    torch.set_num_threads(threads)
    gs.set_num_threads(threads)
    chosen = [plain, F] if compare else [plain if is_plain else F]
    trainings = {functions.__name__: Training(functions, batch, seed, rate) for functions in chosen}
    for turn in range(0, steps, 10):
        for training in trainings.values():
            for _ in range(min(10, steps - turn)):
                training.step()
    for name, training in trainings.items():
        report(name, training, held_out, seed)
    if compare:
        torchs, ours = (training.milliseconds() for training in trainings.values())
        click.echo(f"gradspec.torch is {torchs / ours:.2f} times as fast")


if __name__ == "__main__":
    main()
