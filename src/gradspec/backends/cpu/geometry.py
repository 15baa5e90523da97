from struct import pack, unpack


def as_bits(value: float) -> int:
    (bits,) = unpack("<q", pack("<d", value))
    return int(bits)
