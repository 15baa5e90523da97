"""LeNet-5 as a function of its input and its parameters, compiled, with the plan of its gradient.

Max pooling and relu, as it is written today. The parameters are a dict of layers.

    python examples/lenet5.py
"""

import click
import numpy as np

import gradspec as gs

SIZE = 28  # pixels on a side
LAYERS = {"conv1": (6, 1, 5, 5), "conv2": (16, 6, 5, 5), "hidden1": (120, 400), "hidden2": (84, 120), "out": (10, 84)}


def initial(random, dtype=np.float32):
    """Weights with the variance that keeps activations of one size, and biases of zero."""
    weights = {
        layer: (random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(dtype)
        for layer, shape in LAYERS.items()
    }
    return {layer: {"weight": w, "bias": np.zeros(len(w), dtype)} for layer, w in weights.items()}


def logits(x, params):
    """One number for each of ten digits, for images of shape (N, 1, 28, 28)."""
    x = gs.max_pool2d(gs.relu(gs.conv2d(x, **params["conv1"], padding=2)), 2)
    x = gs.max_pool2d(gs.relu(gs.conv2d(x, **params["conv2"])), 2)
    x = gs.flatten(x, 1)
    for layer in ("hidden1", "hidden2"):
        x = gs.relu(gs.linear(x, **params[layer]))
    return gs.linear(x, **params["out"])


def loss(params, x, labels):
    """The mean cross-entropy."""
    return gs.cross_entropy(logits(x, params), labels)


@click.command(context_settings={"show_default": True})
@click.option("--batch", default=64, help="Images at a time.")
def main(batch):
    """Compile LeNet-5 and print what a call of it does, and one of its gradient."""
    params = initial(np.random.default_rng(0))
    images = gs.f32[batch, 1, SIZE, SIZE]
    run = gs.compile(lambda x: logits(x, params), images)
    click.echo(f"value\n{run.plan}\n")
    types = {layer: {name: gs.f32[array.shape] for name, array in p.items()} for layer, p in params.items()}
    train = gs.compile(gs.value_and_grad(loss), types, images, gs.i64[batch])
    click.echo(f"value and gradient\n{train.plan}")


if __name__ == "__main__":
    main()
