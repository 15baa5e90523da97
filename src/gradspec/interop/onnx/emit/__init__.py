"""How each operator is written in ONNX, one module for each family of them."""
