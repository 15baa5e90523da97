"""The command line: ``gradspec COMMAND``."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from gradspec import DTypeError, UnsupportedError, __version__

_SHAPE = "A dimension that an ONNX model leaves open, N=8, or the shape of an input, x=8,3,32,32."
_CONSTANT = "An .npy file for an input that becomes a constant."


@contextmanager
def _said_plainly() -> Iterator[None]:
    """What is wrong with a file or a request, without a traceback."""
    from gradspec.graph.show import ascii_only

    try:
        yield
    except (OSError, ImportError, MemoryError, ValueError, DTypeError, UnsupportedError) as error:
        lines = (str(error) or type(error).__name__).split("\n")
        raise click.ClickException("\n".join(map(ascii_only, lines))) from error


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gradspec")
def main() -> None:
    """What convolution and pooling mean: values and both derivatives, over any scalar."""


@main.command()
def demo() -> None:
    """Show what gradspec is, on small examples computed as you watch.

    Windows and winners drawn in the terminal; floats beside exact rationals; intervals, balls and bit-exact low
    precision. It needs no framework and takes about a second. Every line after >>> can be typed into Python.
    """
    from gradspec.demo import show

    show()


@main.command("show")
@click.argument("file", type=click.Path())
@click.option("--shape", "shapes", multiple=True, metavar="NAME=SIZES", help=_SHAPE)
@click.option("--constant", "constants", multiple=True, metavar="NAME=FILE", help=_CONSTANT)
@click.option("--html", "page", type=click.Path(), help="Write the graph as a picture to this HTML file instead.")
def show_graph(file: str, shapes: tuple[str, ...], constants: tuple[str, ...], page: str | None) -> None:
    """Print a saved graph or an ONNX model: inputs, constants, operators with their attributes, types and outputs."""
    from pathlib import Path

    from gradspec.graph.picture import document
    from gradspec.interop.command import read_model

    with _said_plainly():
        graph = read_model(file, shapes, constants)
        if page is None:
            click.echo(str(graph))
        else:
            Path(page).write_text(document(graph, Path(file).name), encoding="utf-8")


@main.command("run")
@click.argument("model", type=click.Path())
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]FILE", help="An .npy file for each input.")
@click.option("--output", required=True, type=click.Path(), help="The .npy file, or .npz if there are several results.")
@click.option("--jvp", "tangents", multiple=True, metavar="[NAME=]FILE", help="Tangents of the inputs: forward mode.")
@click.option("--vjp", "cotangents", multiple=True, metavar="[NAME=]FILE", help="Cotangents of outputs: reverse mode.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=SIZES", help=_SHAPE)
@click.option("--constant", "constants", multiple=True, metavar="NAME=FILE", help=_CONSTANT)
@click.option("--threads", type=click.IntRange(1), help="[what this process may use]")
@click.option("--time", "timed", is_flag=True, help="Repeat the run for a second and give the median time.")
def run_model(
    model: str,
    inputs: tuple[str, ...],
    output: str,
    tangents: tuple[str, ...],
    cotangents: tuple[str, ...],
    shapes: tuple[str, ...],
    constants: tuple[str, ...],
    threads: int | None,
    timed: bool,
) -> None:
    """Run a saved graph or an ONNX model on arrays from files, or its derivative in either mode.

    Files without a name are given to the inputs in order. With --jvp the results are the outputs and their tangents
    (dNAME); inputs that are not named do not move. With --vjp they are the outputs and the cotangents of all
    floating-point inputs (ct_NAME); the cotangents of outputs that are not named are zero.
    """
    import gradspec.library  # noqa: F401  (the rooms that run graphs)
    from gradspec.interop.command import Request, perform

    with _said_plainly():
        request = Request(model, inputs, output, shapes, constants, tangents, cotangents, threads, timed)
        for line in perform(request):
            click.echo(line)


def _listed(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str] | None:
    return None if value is None else [name.strip() for name in value.split(",") if name.strip()]


@main.command()
@click.argument("suite", type=click.Choice(["pool", "conv", "net"]), default="pool")
@click.option(
    "--peers", callback=_listed, help="torch, jax, onnxruntime or a part of torch: torch-eager, ... [all installed]"
)
@click.option("--cells", callback=_listed, help="Cells of the grid: P1,P2 and so on. [all]")
@click.option("--ops", callback=_listed, help="Pooling operators: max,avg,smooth. [all]")
@click.option("--modes", callback=_listed, help="forward,jvp,vjp: the value alone or with a derivative. [all]")
@click.option("--rounds", type=click.IntRange(1), help="Turns that every contender has at every problem. [7]")
@click.option("--threads", type=click.IntRange(1), help="Threads for every contender. [what this process may use]")
@click.option("--timeout", type=click.FloatRange(1), help="Seconds after which a contender is given up. [180]")
@click.option("--quick", is_flag=True, help="Two short rounds, without torch-compile unless it is named.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Write everything measured to this file.")
@click.option("--plot", "plot_file", type=click.Path(dir_okay=False), help="Draw the result: .png, .pdf or .svg.")
def bench(
    suite: str,
    peers: list[str] | None,
    cells: list[str] | None,
    ops: list[str] | None,
    modes: list[str] | None,
    rounds: int | None,
    threads: int | None,
    timeout: float | None,
    quick: bool,
    json_file: str | None,
    plot_file: str | None,
) -> None:
    """Time the standard grid for gradspec and every installed peer, side by side.

    Each contender has a process of its own, which is stopped while another runs. They take turns on the same numbers,
    and their results are compared before anything is timed. Ctrl-C ends early and shows what was measured.
    """
    from gradspec.bench.command import Request, UserError, perform

    request = Request(suite, peers, cells, ops, modes, rounds, threads, timeout, quick, json_file, plot_file)
    try:
        perform(request)
    except UserError as error:
        raise click.ClickException(str(error)) from error
