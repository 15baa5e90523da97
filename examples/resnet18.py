"""ResNet-18 with batch normalisation, as a function of its input, its parameters and its statistics.

Both are dicts of arrays under the names that torchvision gives them, so that weights trained there can be used here.

    python examples/resnet18.py --size 224
"""

import time

import click
import numpy as np

import gradspec as gs

STAGES = {"layer1": 64, "layer2": 128, "layer3": 256, "layer4": 512}  # channels; two blocks each


def blocks():
    """``(name, channels in, channels out, stride)`` of the eight residual blocks."""
    channels = 64
    for stage, width in STAGES.items():
        for i in range(2):
            yield f"{stage}.{i}", channels, width, 1 if channels == width else 2
            channels = width


def convolutions():
    """``(convolution, its batch norm, the shape of its weight)``."""
    yield "conv1", "bn1", (64, 3, 7, 7)
    for name, narrow, wide, stride in blocks():
        yield f"{name}.conv1", f"{name}.bn1", (wide, narrow, 3, 3)
        yield f"{name}.conv2", f"{name}.bn2", (wide, wide, 3, 3)
        if stride > 1:
            yield f"{name}.downsample.0", f"{name}.downsample.1", (wide, narrow, 1, 1)


def initial(random, classes=1000, dtype=np.float32):
    """Random parameters, and the statistics of a network that has seen no data."""
    params, statistics = {}, {}
    for conv, norm, shape in convolutions():
        scale = np.sqrt(2 / (shape[0] * shape[2] * shape[3]))
        params[f"{conv}.weight"] = (scale * random.standard_normal(shape)).astype(dtype)
        params[f"{norm}.weight"], params[f"{norm}.bias"] = np.ones(shape[0], dtype), np.zeros(shape[0], dtype)
        statistics[f"{norm}.running_mean"] = np.zeros(shape[0], dtype)
        statistics[f"{norm}.running_var"] = np.ones(shape[0], dtype)
    params["fc.weight"] = random.uniform(-1, 1, (classes, 512)).astype(dtype) / dtype(np.sqrt(512))
    params["fc.bias"] = np.zeros(classes, dtype)
    return params, statistics


def logits(x, params, statistics):
    """One number for each class, for images of shape (N, 3, H, W)."""

    def conv_norm(x, conv, norm, stride=1, padding=0):
        y = gs.conv2d(x, params[f"{conv}.weight"], stride=stride, padding=padding)
        mean, variance = statistics[f"{norm}.running_mean"], statistics[f"{norm}.running_var"]
        return gs.batch_norm(y, mean, variance, params[f"{norm}.weight"], params[f"{norm}.bias"])

    x = gs.relu(conv_norm(x, "conv1", "bn1", stride=2, padding=3))
    x = gs.max_pool2d(x, 3, stride=2, padding=1)
    for name, _, _, stride in blocks():
        y = gs.relu(conv_norm(x, f"{name}.conv1", f"{name}.bn1", stride, padding=1))
        y = conv_norm(y, f"{name}.conv2", f"{name}.bn2", padding=1)
        if stride > 1:
            x = conv_norm(x, f"{name}.downsample.0", f"{name}.downsample.1", stride)
        x = gs.relu(y + x)
    x = gs.global_avg_pool(x, keepdims=False)
    return gs.linear(x, params["fc.weight"], params["fc.bias"])


def loss(params, statistics, x, labels):
    """The mean cross-entropy."""
    return gs.cross_entropy(logits(x, params, statistics), labels)


@click.command(context_settings={"show_default": True})
@click.option("--size", default=224, help="Pixels on a side.")
@click.option("--batch", default=1, help="Images at a time.")
@click.option("--fold", is_flag=True, help="Fold batch normalisation into the convolutions.")
def main(size, batch, fold):
    """Compile ResNet-18 with random weights, print what a call does, and time it."""
    random = np.random.default_rng(0)
    params, statistics = initial(random)
    began = time.perf_counter()
    graph = gs.trace(lambda x: logits(x, params, statistics), gs.f32[batch, 3, size, size])
    run = gs.compile(gs.fold_batch_norm(graph) if fold else graph)
    click.echo(run.plan)
    click.echo(f"compiled in {time.perf_counter() - began:.2f} s")
    image = random.standard_normal((batch, 3, size, size), np.float32)
    run(image)
    began = time.perf_counter()
    run(image)
    click.echo(f"a call takes {1e3 * (time.perf_counter() - began):.1f} ms")


if __name__ == "__main__":
    main()
