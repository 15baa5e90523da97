"""Judging bounds: cases of a network and a box, targets that bound them, and whether what they say is true.

Modules use those before them: ``cases → networks → targets → truth → judging → shrinking → run → command``.
"""
