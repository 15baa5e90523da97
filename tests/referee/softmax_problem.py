"""The second problem of the exploits: one softmax."""

import gradspec as gs


def reference(x):
    return gs.softmax(x, axis=-1)
