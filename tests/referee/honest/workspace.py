"""A workspace that is kept, and results that are not in it."""

import numpy as np

SPACE = {}


def kernel(x, up, down):
    space = SPACE.setdefault((len(x), up.shape[1]), np.empty((len(x), up.shape[1]), x.dtype))
    hidden = np.maximum(np.matmul(x, up), 0)
    space[...] = hidden
    logits = hidden @ down
    e = np.exp(logits - logits.max(-1, keepdims=True, initial=-np.inf))
    return e / e.sum(-1, keepdims=True)
