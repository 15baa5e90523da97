"""The instructions of pointwise programs, by number. They are part of what compiled kernels mean, so they belong here.

An instruction is ``opcode, result, first operand, second operand, three numbers``.
"""

COPY, NEG, ABS, SQRT, SCALE, SHIFT, RELU, LEAKY_RELU, CLAMP, STEP, WITHIN = range(11)
EXP, LOG, TANH, SIGMOID, SOFTPLUS, SILU, GELU, GELU_BY_TANH, NORMAL_CDF, NORMAL_DENSITY, POWER = range(11, 22)
ADD, SUB, MUL, DIV, MAXIMUM, MINIMUM, MAX_SHARE, GATE = range(22, 30)
ADD_NUMBER, SUB_NUMBER, MUL_NUMBER, DIV_NUMBER, MAXIMUM_NUMBER, MINIMUM_NUMBER = range(30, 36)
NUMBER_SUB, NUMBER_DIV = range(36, 38)
NORMALISE, GATHER, SCATTER = range(38, 41)

FIRST_WITH_TABLE = ADD_NUMBER
"""From this opcode on, the last operand is the word where a table begins: a view, or statistics."""

BY_NUMBER = {
    ADD: ADD_NUMBER,
    SUB: SUB_NUMBER,
    MUL: MUL_NUMBER,
    DIV: DIV_NUMBER,
    MAXIMUM: MAXIMUM_NUMBER,
    MINIMUM: MINIMUM_NUMBER,
}
"""The same with a second operand that repeats its numbers."""

NUMBER_BY = BY_NUMBER | {SUB: NUMBER_SUB, DIV: NUMBER_DIV}
"""The same with a first operand that does, and becomes the second."""

HEADER_WORDS, PLACE_WORDS, INSTRUCTION_WORDS = 5, 3, 7

HERE, IN_WORKSPACE, GIVEN = 0, 1, 2
"""Kinds of places: in an array, in the workspace, and where a word of the workspace says."""

GIVEN_BYTES, AXES_BYTES = 64, 512
"""The workspace begins with addresses of blocks that the caller gives; then comes a word for each axis of an array."""
