"""ONNX: one model of a call for all that run models, ONNX Runtime and the reference implementation."""
