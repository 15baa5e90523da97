"""Which rows of the tables run at once, and which only where every row is asked for."""

from collections import defaultdict

import pytest

ROWS = 12
"""Of each test, so many rows run by default, spread evenly over its table; ``pytest -m exhaustive`` runs the others."""


def pytest_collection_modifyitems(items):
    rows = defaultdict(list)
    for item in items:
        rows[item.nodeid.partition("[")[0]].append(item)
    for table in rows.values():
        chosen = {i * len(table) // ROWS for i in range(ROWS)} if len(table) > ROWS else set(range(len(table)))
        for i, item in enumerate(table):
            if i not in chosen:
                item.add_marker(pytest.mark.exhaustive)
