"""The command line: ``gradspec COMMAND``."""

import click

from gradspec import __version__


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
@click.option("--html", "page", type=click.Path(), help="Write the graph as a picture to this HTML file instead.")
def show_graph(file: str, page: str | None) -> None:
    """Print a saved graph: inputs, constants, operators with their attributes, types and outputs."""
    from pathlib import Path

    import gradspec as gs
    from gradspec.graph.picture import document
    from gradspec.graph.show import ascii_only

    try:
        graph = gs.load(file)
        if page is None:
            click.echo(str(graph))
        else:
            Path(page).write_text(document(graph, Path(file).name), encoding="utf-8")
    except (OSError, gs.FormatError) as error:
        raise click.ClickException(ascii_only(str(error))) from error
