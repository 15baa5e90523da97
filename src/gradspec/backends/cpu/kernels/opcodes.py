"""The instructions of pointwise programs, by number. They are part of what compiled kernels mean, so they belong here.

An instruction is ``opcode, result, first operand, second operand, three numbers``.
"""

COPY, NEG, ABS, SQRT, SCALE, RELU, LEAKY_RELU, CLAMP, STEP, WITHIN = range(10)
ADD, SUB, MUL, DIV, MAXIMUM, MINIMUM, MAX_SHARE, GATE = range(10, 18)
GATHER, SCATTER = range(18, 20)

FIRST_TRANSFER = GATHER
"""From this opcode on, operands are a place and the word where an array is described."""

HEADER_WORDS, PLACE_WORDS, INSTRUCTION_WORDS = 5, 3, 7
