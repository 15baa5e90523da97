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
