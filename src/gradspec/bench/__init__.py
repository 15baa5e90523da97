"""``gradspec bench``: a published grid of problems, timed in one run for gradspec and every installed peer.

``grid`` is the problems as data and ``data`` their numbers, ``contenders`` writes them as each library's users would,
``worker`` is the process of a contender and ``remote`` the other end of its pipe, ``measure`` takes turns, ``ratios``
are read off its medians and compared with ``targets``, ``report`` and ``plot`` show the result, and ``command`` is all
of it behind the options of the command line.
"""
