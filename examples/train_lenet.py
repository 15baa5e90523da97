"""Train LeNet-5 on digits that the program draws itself, by ``gs.value_and_grad`` and a few lines of Adam.

Every digit is a set of pen strokes: turned, slanted, scaled, moved, drawn with a pen of random width, and covered with
noise. Training never sees an image twice, and the images it is judged on are drawn from another seed. It takes well
under a minute on two cores.

    python examples/train_lenet.py
"""

import time
from itertools import pairwise

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import gradspec as gs
from lenet5 import SIZE, initial, logits, loss

# --- digits -----------------------------------------------------------------------------------------------------------


def arc(x, y, width, height, start, end):
    """Points on an ellipse, angles in degrees, clockwise from the right."""
    angles = np.radians(np.linspace(start, end, 10))
    return [(x + width * np.cos(a), y + height * np.sin(a)) for a in angles]


PENS = [  # each digit is one or two pens' ways through the square from (−1, −1), top left, to (1, 1)
    [arc(0, 0, 0.55, 0.9, 0, 360)],
    [[(-0.3, -0.5), (0.1, -0.9), (0.1, 0.9)]],
    [[*arc(0, -0.45, 0.5, 0.45, -180, 30), (-0.5, 0.9), (0.55, 0.9)]],
    [arc(0, -0.45, 0.45, 0.45, -160, 90), arc(0, 0.45, 0.5, 0.45, -90, 160)],
    [[(0.25, 0.9), (0.25, -0.9), (-0.55, 0.3), (0.55, 0.3)]],
    [[(0.45, -0.9), (-0.4, -0.9), (-0.4, -0.1), *arc(0, 0.35, 0.5, 0.55, -120, 150)]],
    [[(0.3, -0.9), (-0.2, -0.5), *arc(0, 0.35, 0.5, 0.55, -180, 180)]],
    [[(-0.5, -0.9), (0.5, -0.9), (-0.1, 0.9)]],
    [arc(0, -0.45, 0.4, 0.45, 90, 450), arc(0, 0.45, 0.5, 0.45, -90, 270)],
    [[(0.3, 0.9), (0.5, 0.1), *arc(0, -0.35, 0.5, 0.55, 0, 360)]],
]
STROKES = [[stroke for way in ways for stroke in pairwise(way)] for ways in PENS]
MOST = max(map(len, STROKES))
SEGMENTS = np.array(
    [strokes + strokes[-1:] * (MOST - len(strokes)) for strokes in STROKES]
)  # digit, stroke, end, (x, y)


def draw(count, random):
    """``count`` random images, of shape (count, 1, SIZE, SIZE), and the digits on them."""
    labels = random.integers(10, size=count)
    turn, slant = random.uniform(-0.3, 0.3, (2, count, 1, 1))
    shift = SIZE / 2 + random.uniform(-2.5, 2.5, (2, count, 1, 1))
    x, y = np.moveaxis(SEGMENTS[labels] * random.uniform(7, 11, (count, 1, 1, 2)), -1, 0)
    x = x + slant * y
    x, y = x * np.cos(turn) - y * np.sin(turn) + shift[0], x * np.sin(turn) + y * np.cos(turn) + shift[1]
    ink = random.uniform(1.2, 2.3, (count, 1, 1)) - distance(x.astype(np.float32), y.astype(np.float32))
    images = np.clip(ink, 0, 1) + random.normal(0, 0.2, (count, SIZE, SIZE))
    return images[:, None].astype(np.float32), labels


def distance(x, y):
    """From every pixel to the nearest segment of its image; ``x`` and ``y`` are indexed by image, segment and end."""
    column, row = np.arange(SIZE, dtype=np.float32), np.arange(SIZE, dtype=np.float32)[:, None]
    nearest = np.full((len(x), SIZE, SIZE), np.inf, np.float32)
    for (x0, x1), (y0, y1) in zip(x.transpose(1, 2, 0), y.transpose(1, 2, 0), strict=True):
        x0, y0, dx, dy = (v[:, None, None] for v in (x0, y0, x1 - x0, y1 - y0))
        length = dx * dx + dy * dy + 1e-9
        part = np.clip((column - x0) * (dx / length) + (row - y0) * (dy / length), 0, 1)
        np.minimum(nearest, np.square(column - x0 - part * dx) + np.square(row - y0 - part * dy), out=nearest)
    return np.sqrt(nearest)


# --- training ---------------------------------------------------------------------------------------------------------


class Adam:
    """Steps along the mean of recent gradients, divided by the root of their mean square."""

    def __init__(self, params, rate):
        self.rate, self.count = rate, 0
        self.means = {layer: {name: [0.0, 0.0] for name in tensors} for layer, tensors in params.items()}

    def step(self, params, gradients):
        self.count += 1
        for layer, tensors in gradients.items():
            for name, gradient in tensors.items():
                means = self.means[layer][name]
                for i, (decay, power) in enumerate(((0.9, gradient), (0.999, gradient * gradient))):
                    means[i] = decay * means[i] + (1 - decay) * power
                mean, square = (m / (1 - d**self.count) for m, d in zip(means, (0.9, 0.999), strict=True))
                params[layer][name] -= self.rate * mean / (np.sqrt(square) + 1e-8)


def train(steps, batch, seed, rate, seconds, report):
    """Parameters after ``steps`` steps, or as many as ``seconds`` allow; ``report`` is told about each."""
    random = np.random.default_rng([seed, 0])
    params = initial(random)
    adam, gradient = Adam(params, rate), gs.value_and_grad(loss)
    began = time.monotonic()
    for _ in range(steps):
        images, labels = draw(batch, random)
        value, slopes = gradient(params, images, labels)
        adam.step(params, slopes)
        report(float(value))
        if time.monotonic() - began > seconds:
            break
    return params


def accuracy(params, images, labels):
    return float(np.mean(logits(images, params).argmax(1) == labels))


@click.command(context_settings={"show_default": True})
@click.option("--steps", default=250, help="How many steps to train.")
@click.option("--seconds", default=100.0, help="Stop training after this time, whatever the number of steps.")
@click.option("--batch", default=64, help="Images in a step.")
@click.option("--rate", default=0.002, help="Adam's learning rate.")
@click.option("--seed", default=0, help="Decides every random choice.")
@click.option("--held-out", default=2000, help="How many images to judge the result on.")
def main(steps, seconds, batch, rate, seed, held_out):
    """Train a LeNet on digits drawn by this program, and print its accuracy on digits it has not seen."""
    console = Console()
    bar = Progress(
        TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"), console=console,
    )  # fmt: skip
    recent = []
    with bar:
        task = bar.add_task("", total=steps, loss=float("nan"))

        def report(value):
            recent.append(value)
            bar.update(task, advance=1, loss=np.mean(recent[-20:]))

        params = train(steps, batch, seed, rate, seconds, report)
    console.print(f"loss {recent[0]:.3f} at first, {np.mean(recent[-20:]):.3f} at last, after {len(recent)} steps")
    console.print(f"accuracy {accuracy(params, *draw(held_out, np.random.default_rng([seed, 1]))):.2%} on new images")


if __name__ == "__main__":
    main()
