"""All kernels write to memory that holds something else before."""

import pytest


@pytest.fixture(autouse=True)
def write_all(filled_memory):
    """Ask for it in every test."""
