"""How operators are written as nodes of ONNX. Importing the package fills the table."""

from gradspec.interop.onnx.emit import rules, windows

__all__ = ["rules", "windows"]
