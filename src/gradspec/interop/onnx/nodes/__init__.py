"""How each operator of ONNX is written in gradspec's, by its name; every handler knows all versions of its operator."""

from gradspec.interop.onnx.node import Handler, Signature
from gradspec.interop.onnx.nodes import arithmetic, attention, fused, layout, quantize, windows

_FOREIGN = fused.FOREIGN | quantize.FOREIGN

HANDLERS: dict[str, Handler] = {
    **layout.HANDLERS,
    **arithmetic.HANDLERS,
    **attention.HANDLERS,
    **windows.HANDLERS,
    **quantize.HANDLERS,
    **{name: handler for name, (handler, _) in _FOREIGN.items()},
}
"""By the name of the operator, with its domain in front if that is not ONNX's own."""

FOREIGN: dict[str, Signature] = {name: signature for name, (_, signature) in _FOREIGN.items()}
"""Operators that ONNX has no record of, by their name with the domain in front if that is not ONNX's own."""
