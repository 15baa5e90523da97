"""How many networks of an installed torchvision or timm come in, and agree with PyTorch; and why the others do not.

    python benchmarks/torch_models.py timm [PATTERN ...] [--members 1] [--gradients] [--verbose]
    python benchmarks/torch_models.py torchvision "resnet*" "*_v3_*" --members 9

Of every family, a module of the library, the smallest members are taken by their names; patterns choose among all
names. Weights are random, from a seed, statistics and weights that are constant at first as well; nothing is
downloaded. A network is tried on the smallest image of SIZES that PyTorch runs it on, unless it is made for one size.

The graph agrees if it differs from the network in float64 by at most TOLERANCE of the largest number of the output, or
by at most SLACK times what PyTorch's own float32 differs by; with ``--gradients`` the derivative of the output's sum in
the image has to as well. A network counts as convolutional if it has a convolution for every four linear layers.

Every network has a process of its own, which may take so many seconds and is given up with it.
"""

import argparse
import re
import time
import warnings
from collections import Counter, defaultdict
from contextlib import redirect_stderr
from fnmatch import fnmatch
from importlib import import_module
from multiprocessing import get_context
from os import devnull

import torch
from torch import nn

import gradspec as gs

SIZES = (64, 96, 128, 224, 256)
TOLERANCE, SLACK = 1e-5, 4.0
SMALL = ("test", "zepto", "atto", "femto", "pico", "xxt", "nano", "xxs", "xt", "xs", "mini", "tiny", "t", "small", "s")
"""Words in names, the smallest networks' first."""

AGREES, DIFFERS, REFUSED = "agrees", "differs", "does not come in"
NOT_EXPORTED, NOT_RUN, NO_ANSWER = "not exported by torch.export", "not run by PyTorch", "no answer"
VERDICTS = (AGREES, DIFFERS, REFUSED, NOT_EXPORTED, NOT_RUN, NO_ANSWER)


# --- networks ---------------------------------------------------------------------------------------------------------


def families(library):
    """The names of a library's networks, by family."""
    found = defaultdict(list)
    if library == "timm":
        from timm import list_models, list_modules

        found.update({family: list_models(module=family) for family in list_modules()})
    else:
        from torchvision.models import get_model_builder, list_models

        for name in list_models():
            found[get_model_builder(name).__module__.removeprefix("torchvision.models.")].append(name)
    return found


def smallest(names, count):
    """Those whose names say so, by a word, then by the first number."""

    def size(name):
        words = re.split(r"[_\d]+", name)
        rank = min((SMALL.index(word) for word in words if word in SMALL), default=len(SMALL))
        number = re.search(r"\d+", name)
        return rank, int(number[0]) if number else 0, len(name), name

    return sorted(names, key=size)[:count]


def made(library, name):
    """A network with random numbers everywhere, and the sizes of image to try."""
    torch.manual_seed(0)
    if library == "timm":
        from timm import create_model

        network = create_model(name)
        own = network.default_cfg["input_size"][-1]
        sizes = [own] if network.default_cfg.get("fixed_input_size") else [*SIZES, own]
    else:
        network, sizes = torchvision_network(name), SIZES
    with torch.no_grad():
        for key, tensor in network.state_dict().items():
            if tensor.is_floating_point() and tensor.numel() and tensor.min() == tensor.max():
                tensor.add_(torch.randn_like(tensor), alpha=0.1)
                if key.endswith("running_var"):
                    tensor.abs_()
    return network.eval(), sizes


def torchvision_network(name):
    from torchvision.models import get_model

    try:
        return get_model(name, weights=None, weights_backbone=None)
    except (TypeError, ValueError):  # it has no backbone
        return get_model(name, weights=None)


def image_for(network, sizes):
    """A random image of a size for which PyTorch runs the network."""
    for size in sizes:
        for shape in ((1, 3, size, size), (1, 3, 8, size, size)):
            image = torch.randn(shape, generator=torch.Generator().manual_seed(1))
            try:
                network(image)
            except Exception as error:
                failure = error
            else:
                return image
    raise failure


# --- one network ------------------------------------------------------------------------------------------------------


def verdict(library, name, gradients):
    """What became of a network, whether it is convolutional, and the reasons or figures."""
    try:
        network, sizes = made(library, name)
        with torch.no_grad():
            image = image_for(network, sizes)
    except Exception as error:
        return NOT_RUN, False, reasons_of(error)
    kinds = Counter(isinstance(part, nn.Linear) for part in network.modules() if is_layer(part))
    convolutional = 4 * kinds[False] >= kinds[True]
    try:
        program = torch.export.export(network, (image,), strict=False)
    except Exception as error:
        return NOT_EXPORTED, convolutional, reasons_of(error)
    try:
        graph = gs.from_torch(program)
    except Exception as error:
        return REFUSED, convolutional, reasons_of(error)
    errors = compared(graph, network, image, gradients)
    agrees = all(ours <= max(TOLERANCE, SLACK * theirs) for ours, theirs in errors)
    told = [f"{tuple(image.shape)}: error {ours:.0e}, PyTorch's own {theirs:.0e}" for ours, theirs in errors]
    return AGREES if agrees else DIFFERS, convolutional, told


def is_layer(part):
    return isinstance(part, nn.Linear | nn.modules.conv._ConvNd)


def compared(graph, network, image, gradients):
    """The errors of the graph's results and of PyTorch's own against float64, relative to the largest number."""
    ours = results_of(graph(image))
    theirs = pulled(network, image, gradients)
    try:
        exact = pulled(network.double(), image.double(), gradients)
    except RuntimeError:  # it makes float32 tensors of its own
        exact = theirs
    if gradients:
        cotangents = [torch.ones_like(y) for y in ours]
        ours = results_of(graph.vjp(0)(image, *cotangents))
    return [(distance(y, z), distance(x, z)) for y, x, z in zip(ours, theirs, exact, strict=True)]


def pulled(network, image, gradients):
    """The tensors among a network's results, and the derivative of their sum in the image."""
    image = image.clone().requires_grad_(gradients)
    with torch.set_grad_enabled(gradients):
        results = [y for y in torch.utils._pytree.tree_leaves(network(image)) if isinstance(y, torch.Tensor)]
    if gradients:
        return [*(y.detach() for y in results), *torch.autograd.grad(sum(y.sum() for y in results), image)]
    return results


def results_of(result):
    return list(result) if isinstance(result, tuple) else [result]


def distance(found, exact):
    if found.shape != exact.shape:
        return float("inf")
    scale = exact.abs().max().item() if exact.numel() else 0.0
    error = (found.double() - exact.double()).abs().max().item() if exact.numel() else 0.0
    return error / scale if scale else error


def reasons_of(error):
    """The operators that an error lists, or its first line."""
    lines = str(error).splitlines() or [""]
    operators = [line.strip() for line in lines if re.match(r"  \S", line)]
    return [re.sub(r", (once|\d+ times)", "", line)[:160] for line in operators] or [
        f"{type(error).__name__}: {re.sub(r'[0-9]+', '#', lines[0])[:140]}"
    ]


# --- all of them ------------------------------------------------------------------------------------------------------


def tried(library, name, gradients, seconds):
    """The verdict of a process of its own."""
    context = get_context("fork")  # the libraries are loaded, and have started no threads
    receiver, sender = context.Pipe(duplex=False)

    def work():
        warnings.simplefilter("ignore")
        with open(devnull, "w") as nowhere, redirect_stderr(nowhere):
            sender.send(verdict(library, name, gradients))

    process = context.Process(target=work)
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(seconds) else (NO_ANSWER, False, [f"not in {seconds} s"])
    except EOFError:
        process.join()
        return NO_ANSWER, False, [f"the process ended with {process.exitcode}"]
    finally:
        process.kill()
        process.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", choices=["timm", "torchvision"])
    parser.add_argument("patterns", nargs="*", default=["*"], help="names of networks or families")
    parser.add_argument("--members", type=int, default=1, help="networks of each family")
    parser.add_argument("--limit", type=int, help="networks in all")
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="a line for every network")
    options = parser.parse_args()
    import_module(options.library)
    chosen = [
        name
        for family, names in families(options.library).items()
        for name in smallest(
            [n for n in names if any(fnmatch(n, p) or fnmatch(family, p) for p in options.patterns)], options.members
        )
    ]
    counts, reasons = Counter(), defaultdict(list)
    for name in chosen[: options.limit]:
        start = time.perf_counter()
        what, convolutional, told = tried(options.library, name, options.gradients, options.seconds)
        counts.update([(what, convolutional)])
        if what != AGREES:
            for reason in told:
                reasons[what, reason].append(name)
        if options.verbose:
            print(f"{name:40} {what:20} {time.perf_counter() - start:5.1f} s  {'; '.join(told)}", flush=True)
    total, of_these = counts.total(), sum(n for (_, convolutional), n in counts.items() if convolutional)
    print(f"\n{total} networks of {options.library}, {of_these} of them convolutional")
    for what in VERDICTS:
        if counts[what, True] + counts[what, False]:
            print(f"{counts[what, True] + counts[what, False]:5}  {what}; {counts[what, True]} convolutional")
    for (what, reason), names in sorted(reasons.items(), key=lambda item: (VERDICTS.index(item[0][0]), -len(item[1]))):
        print(f"{len(names):5}  {what}: {reason}\n       {', '.join(names)}")


if __name__ == "__main__":
    main()
