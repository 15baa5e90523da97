"""Train a small network with overlapping max pooling on drawn digits, and prove what it says about new ones.

For every image: no change of its pixels by at most ``eps`` changes the digit, for any kernel that computes the network
in float32. The margins are drawn as bars. At the end, what a bound without rounding terms would have claimed.

    python examples/verify_digits.py
"""

import click
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import gradspec as gs
from train_lenet import SIZE, Adam, draw

LAYERS = {"conv1": (6, 1, 5, 5), "conv2": (16, 6, 5, 5), "hidden": (64, 256), "out": (10, 64)}


def initial(random):
    weights = {
        layer: (random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)
        for layer, shape in LAYERS.items()
    }
    return {layer: {"weight": w, "bias": np.zeros(len(w), np.float32)} for layer, w in weights.items()}


def logits(x, params):
    """One number for each digit; the windows of 3 × 3 cells move by 2, so they overlap."""
    x = gs.max_pool2d(gs.relu(gs.conv2d(x, **params["conv1"], padding=2)), 3, stride=2)
    x = gs.max_pool2d(gs.relu(gs.conv2d(x, **params["conv2"])), 3, stride=2)
    return gs.linear(gs.relu(gs.linear(gs.flatten(x, 1), **params["hidden"])), **params["out"])


def train(steps, random):
    params = initial(random)
    adam, gradient = Adam(params, 0.002), gs.value_and_grad(lambda p, x, y: gs.cross_entropy(logits(x, p), y))
    for _ in track(range(steps), "training"):
        images, labels = draw(64, random)
        _, slopes = gradient(params, np.clip(images, 0, 1), labels)
        adam.step(params, slopes)
    return params


def shown(image, label, result):
    """A row of the table: the status, and the margin as a bar."""
    bar = "█" * int(np.clip(2 * result.margin, 0, 40)) if result.status == "proved" else ""
    return str(label), result.status, f"{result.margin:.2f}" if bar else "", bar


def absorption(console):
    """Next to 2²⁵ the numbers of float32 are 4 apart, so a kernel loses what a real network keeps."""
    graph = gs.trace(lambda x: gs.relu(x + 2.0**25) - 2.0**25, gs.f32[1])
    one = np.float32([1])
    real, every = (gs.bounds(graph, one, one, kernels=kernels) for kernels in ("real", "any"))
    console.print("\nrelu(x + 2²⁵) − 2²⁵ at x = 1:")
    console.print(f"  a kernel gives {graph(one)[0]}, the real numbers 1")
    console.print("  a bound without any rounding term would say 1 to 1, and be wrong about every kernel")
    console.print(f"  bounds of the real network   {real.lower[0]:.1f} to {real.upper[0]:.1f}")
    console.print(f"  bounds of any kernel         {every.lower[0]:.1f} to {every.upper[0]:.1f}")


@click.command(context_settings={"show_default": True})
@click.option("--steps", default=300, help="How many steps to train.")
@click.option("--images", default=10, help="How many new images to verify.")
@click.option("--eps", default="1/255", help="By how much a pixel may change; 0 is black and 1 is white.")
@click.option("--timeout", default=30.0, help="Seconds for each image.")
def main(steps, images, eps, timeout):
    """Train, verify, and draw the margins."""
    console = Console()
    params = train(steps, np.random.default_rng([0, 0]))
    new, labels = draw(images, np.random.default_rng([0, 1]))
    new = np.clip(new, 0, 1)
    console.print(f"accuracy on these {images}: {np.mean(logits(new, params).argmax(1) == labels):.0%}")
    graph = gs.trace(lambda x: logits(x, params), gs.f32[1, 1, SIZE, SIZE])
    table = Table("digit", "status", "margin", "", title=f"pixels may change by {eps}, any float32 kernel")
    for image, label in track(list(zip(new, labels, strict=True)), "verifying"):
        result = gs.verify.robust(graph, image[None], eps, int(label), timeout=timeout)
        table.add_row(*shown(image, label, result))
    console.print(table)
    absorption(console)


if __name__ == "__main__":
    main()
