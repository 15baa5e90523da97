"""``torch.nn.functional`` on gradspec's kernels: change one import.

    import gradspec.torch as F      # instead of: import torch.nn.functional as F

Convolutions, pooling, unfolding, resizing and batch normalisation by given statistics take plain CPU tensors, and
pooling CUDA tensors, too, and give what torch gives, up to rounding, with derivatives of every kind. All other names,
and all other tensors, are torch's own. ``with accelerated():`` does the same for modules.

>>> import torch
>>> import gradspec.torch as F
>>> x = torch.tensor([[1.0, 4.0, 4.0, 3.0]], requires_grad=True)
>>> F.relu(F.max_pool1d(x, kernel_size=3, stride=1)).sum().backward()
>>> x.grad
tensor([[0., 2., 0., 0.]])
"""

from typing import Any

from gradspec.interop.extras import require

require("torch", "gradspec.torch")

import gradspec.wiring  # noqa: E402, F401  (what graphs can do)
from gradspec.interop.torch import functional  # noqa: E402  (it imports torch)
from gradspec.interop.torch.device import get_float32_precision, set_float32_precision  # noqa: E402, F401
from gradspec.interop.torch.functional import accelerated  # noqa: E402, F401  (handed out)

globals().update(functional.FUNCTIONS)

OWN = ("accelerated", "get_float32_precision", "set_float32_precision")
"""Names that torch does not have."""


def __getattr__(name: str) -> Any:
    """What torch has and gradspec does not replace; ``__all__`` too, which an import of ``*`` asks for."""
    return __dir__() if name == "__all__" else getattr(functional.theirs, name)


def __dir__() -> list[str]:
    return sorted({*(name for name in dir(functional.theirs) if not name.startswith("_")), *OWN})
