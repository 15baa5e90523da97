"""Judging bounds of networks. Modules use those before them: ``cases → targets → judging → run``."""
