"""Batch normalisation of cells, run after run of one channel or, where channels are neighbours, of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from gradspec.codegen.intrinsics import square_root
from gradspec.codegen.language import inlined, lanes, outlined


@dataclass(frozen=True)
class Normaliser:
    has_weight: bool
    has_bias: bool
    goes_across: bool

    @inlined
    def value(self, x, mean, root, weight, bias):
        value = (x - mean) / root
        if self.has_weight:
            value = value * weight
        if self.has_bias:
            value = value + bias
        return value


NORMALISERS = tuple(Normaliser(*flags) for flags in product((False, True), repeat=3))


@outlined
def normalise(form, statistics, y, x, start, n):
    """The cells ``start … start + n − 1``."""
    has_weight, has_bias = statistics.weight.array != 0, statistics.bias.array != 0
    for kind in NORMALISERS:
        is_affine = has_weight == kind.has_weight and has_bias == kind.has_bias
        if is_affine and statistics.goes_across == kind.goes_across:
            normalised(form, kind, statistics, y, x, start, n)


@outlined
def normalised(form, kind, statistics, y, x, start, n):
    inner, channels, done = statistics.inner, statistics.channels, 0
    while done < n:
        plane = (start + done) // inner
        channel, left = plane % channels, inner - (start + done - plane * inner)
        count = min(n - done, channels - channel if kind.goes_across else left)
        if kind.goes_across:
            across_channels(form, kind, statistics, y, x, done, channel, count)
        else:
            in_channel(form, kind, statistics, y, x, done, channel, count)
        done += count


def across_channels(form, kind, statistics, y, x, at, channel, n):
    """The cell ``at + i`` is one of the channel ``channel + i``."""
    epsilon, s = form.computed(statistics.epsilon), statistics
    means, variances = form.stored_at(s.mean.array), form.stored_at(s.variance.array)
    weights, biases = form.stored_at(s.weight.array), form.stored_at(s.bias.array)
    for i in lanes(form.computed, n):
        mean, root = form.widen(means[channel + i]), square_root(form.widen(variances[channel + i]) + epsilon)
        weight = form.widen(weights[channel + i]) if kind.has_weight else mean
        bias = form.widen(biases[channel + i]) if kind.has_bias else mean
        y[at + i] = form.narrow(kind.value(form.widen(x[at + i]), mean, root, weight, bias))


def in_channel(form, kind, statistics, y, x, at, channel, n):
    s = statistics
    mean = number_of_channel(form, s.mean, channel)
    root = square_root(number_of_channel(form, s.variance, channel) + form.computed(s.epsilon))
    weight = number_of_channel(form, s.weight, channel) if kind.has_weight else mean
    bias = number_of_channel(form, s.bias, channel) if kind.has_bias else mean
    for i in lanes(form.computed, n):
        y[at + i] = form.narrow(kind.value(form.widen(x[at + i]), mean, root, weight, bias))


@inlined
def number_of_channel(form, statistic, channel):
    return form.widen(form.stored_at(statistic.array)[channel * statistic.stride])
