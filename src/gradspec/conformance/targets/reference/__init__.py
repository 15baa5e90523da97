"""Kernels of anything that a graph can say, judged by a reference."""
