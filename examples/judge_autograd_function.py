"""Judge a layer with a backward pass of its own by the module that says what it computes.

The layer divides each row by its root mean square, and its gradient is a formula that somebody worked out on paper. The
reference is an ordinary module; its derivatives follow from what it computes, so nobody writes them down again. The
parameters of the two are the same, and are among the numbers that are tried.

    python examples/judge_autograd_function.py            # the formula as it should be
    python examples/judge_autograd_function.py --short    # one without its second term: what a finding looks like
"""

import sys

import click
import torch

from gradspec.testing import check_kernel

EPSILON = 1e-5


class RMSNorm(torch.nn.Module):
    """What is meant."""

    def __init__(self, size=16):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x / torch.sqrt(torch.mean(x * x, -1, keepdim=True) + EPSILON) * self.weight


class _Norm(torch.autograd.Function):
    """Both directions by hand: ``y = x·r·w`` with ``r = (mean(x²) + ε)^(−1/2)``."""

    @staticmethod
    def forward(ctx, x, weight, is_whole):
        r = torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON)
        ctx.save_for_backward(x, r, weight)
        ctx.is_whole = is_whole
        return x * r * weight

    @staticmethod
    def backward(ctx, g):
        x, r, weight = ctx.saved_tensors
        gw = g * weight
        dx = gw * r
        if ctx.is_whole:
            dx = dx - x * r**3 * (gw * x).mean(-1, keepdim=True)
        return dx, (g * x * r).sum(0), None


class FastRMSNorm(RMSNorm):
    """The same parameters, computed by the function above."""

    is_whole = True

    def forward(self, x):
        return _Norm.apply(x, self.weight, self.is_whole)


class ShortRMSNorm(FastRMSNorm):
    """One whose gradient holds the root mean square for a constant."""

    is_whole = False


def judge(kernel, cases):
    """Values and gradients; without ``modes``, what autograd makes of the backward pass would be judged as well."""
    return check_kernel(kernel, spec=RMSNorm, inputs="f32[4,16]", modes=["value", "vjp"], cases=cases)


@click.command()
@click.option("--short", is_flag=True, help="Judge the formula that lacks a term.")
@click.option("--cases", default=120, help="Cases to judge it on. [120]")
def main(short, cases):
    """Judge the function."""
    try:
        run = judge(ShortRMSNorm if short else FastRMSNorm, cases)
    except AssertionError as told:
        sys.exit(str(told))
    for mode, words in {"value": "results", "vjp": "gradients"}.items():
        judged, weak = run.tally.cells[mode, "judged"], run.tally.cells[mode, "weak"]
        click.echo(f"{judged:,} cells of {words} were judged, of which {weak:,} could hardly fail.")


if __name__ == "__main__":
    main()
