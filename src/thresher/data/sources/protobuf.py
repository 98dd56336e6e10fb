"""The part of protocol buffers' wire format that `Example` (TFRecord) and `Datum` (Caffe) need.

Values are views of the input, not copies.
"""

from collections.abc import Iterator

Value = int | memoryview
Datum = dict[int, Value]
"""A Caffe `Datum` by field number: 1 channels, 2 height, 3 width, 4 data, 5 label, 7 encoded."""


def fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """Yield (number, value) of each field of a message; ValueError if it does not parse."""
    at, end = 0, len(data)
    while at < end:
        tag, at = varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = varint(data, at)
            yield number, value
            continue
        if kind == 2:
            size, at = varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"unknown wire type {kind}")
        if size < 0 or at + size > end:
            raise ValueError("a field extends beyond its message")
        yield number, data[at : at + size]
        at += size


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the number at offset `at` (two's complement, 64 bits) and the offset after it."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number is truncated")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            value &= (1 << 64) - 1
            return (value - (1 << 64) if value >> 63 else value), at
        shift += 7


def message(value: Value) -> memoryview:
    """Return `value` if it is a message or bytes; ValueError if it is a number."""
    if isinstance(value, int):
        raise ValueError("a number instead of a message")
    return value


def parse_example(data: memoryview) -> dict[str, list[Value]]:
    """Parse a `tf.train.Example` to numbers or byte views by feature name (no floats)."""
    example: dict[str, list[Value]] = {}
    for _, features in fields(data):
        for _, entry in fields(message(features)):
            pair = dict(fields(message(entry)))
            name = bytes(message(pair[1])).decode("utf-8")
            example[name] = _feature(message(pair[2])) if 2 in pair else []
    return example


def _feature(data: memoryview) -> list[Value]:
    values: list[Value] = []
    for kind, items in fields(data):
        for _, value in fields(message(items)):
            if kind == 3 and not isinstance(value, int):  # packed integers
                at = 0
                while at < len(value):
                    number, at = varint(value, at)
                    values.append(number)
            elif kind in (1, 3):
                values.append(value)
    return values


def write_varint(value: int) -> bytes:
    """Encode a number that is not negative."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_field(number: int, value: int | bytes) -> bytes:
    """Encode a field of a message."""
    if isinstance(value, int):
        return write_varint(number << 3) + write_varint(value)
    return write_varint(number << 3 | 2) + write_varint(len(value)) + value
