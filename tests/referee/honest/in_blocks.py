"""Rows in blocks of three."""

import numpy as np


def honest(x, up, down):
    hidden = np.maximum(x @ up, 0)
    logits = hidden @ down
    e = np.exp(logits - logits.max(-1, keepdims=True, initial=-np.inf))
    return e / e.sum(-1, keepdims=True)


def kernel(x, up, down):
    parts = [honest(x[i : i + 3], up, down) for i in range(0, max(1, len(x)), 3)]
    return np.concatenate(parts)
