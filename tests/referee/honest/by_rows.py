"""One row after the other."""

import numpy as np


def honest(x, up, down):
    hidden = np.maximum(x @ up, 0)
    logits = hidden @ down
    e = np.exp(logits - logits.max(-1, keepdims=True, initial=-np.inf))
    return e / e.sum(-1, keepdims=True)


def kernel(x, up, down):
    rows = [honest(row[None], up, down) for row in x]
    return np.concatenate(rows) if rows else np.zeros((0, down.shape[1]), x.dtype)
