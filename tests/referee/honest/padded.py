"""Inputs that are padded to whole blocks."""

import numpy as np


def honest(x, up, down):
    hidden = np.maximum(x @ up, 0)
    logits = hidden @ down
    e = np.exp(logits - logits.max(-1, keepdims=True, initial=-np.inf))
    return e / e.sum(-1, keepdims=True)


def kernel(x, up, down):
    rows = -len(x) % 4
    padded = np.concatenate([x, np.zeros((rows, x.shape[1]), x.dtype)])
    return honest(padded, up, down)[: len(x)]
