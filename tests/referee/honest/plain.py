"""NumPy, as anyone writes it."""

import numpy as np


def honest(x, up, down):
    hidden = np.maximum(x @ up, 0)
    logits = hidden @ down
    e = np.exp(logits - logits.max(-1, keepdims=True, initial=-np.inf))
    return e / e.sum(-1, keepdims=True)


kernel = honest
