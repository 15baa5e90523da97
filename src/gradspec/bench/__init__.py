"""``gradspec bench``: a published grid of problems, timed in one run for gradspec and every installed peer.

``grid`` is the problems and their numbers, ``contenders`` writes them as each library's users would, ``worker`` is the
process of a contender, ``measure`` has the other end of its pipe and takes turns, ``compare`` puts a run beside an
earlier one, ``report`` and ``plot`` show the result, and ``command`` is all of it behind the command line's options.
"""
