"""``gradspec bench``: a published grid of problems, timed in one run for gradspec and every installed peer.

``grid`` is the problems and their numbers, ``contenders`` writes them as each library's users would, ``worker`` is the
process of a contender, ``measure`` has the other end of its pipe and takes turns, ``report`` and ``plot`` show the
result, beside an earlier one, too, and ``command`` is all of it behind the command line's options.
"""
