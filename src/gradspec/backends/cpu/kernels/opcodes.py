"""The instructions of pointwise programs, by number. They are part of what compiled kernels mean, so they belong here.

An instruction is ``opcode, result, first operand, second operand, three numbers``.
"""

COPY, NEG, ABS, SQRT, SCALE, RELU, LEAKY_RELU, CLAMP, STEP, WITHIN = range(10)
ADD, SUB, MUL, DIV, MAXIMUM, MINIMUM, MAX_SHARE, GATE = range(10, 18)
GATHER, SCATTER = range(18, 20)

FIRST_TRANSFER = GATHER
"""From this opcode on, operands are a place and the word where an array is described."""

HEADER_WORDS, PLACE_WORDS, INSTRUCTION_WORDS = 5, 3, 7

HERE, IN_WORKSPACE, GIVEN = 0, 1, 2
"""Kinds of places: in an array, in the workspace, and where a word of the workspace says."""

GIVEN_BYTES, AXES_BYTES = 64, 512
"""The workspace begins with addresses of blocks that the caller gives; then comes a word for each axis of an array."""
