"""Just enough of protocol buffers' wire format to read an `Example` (TFRecord) or a `Datum`
(Caffe's LMDB) without their libraries. Views are taken, not copies."""

from collections.abc import Iterator

Value = int | memoryview


def fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """(number, value) of each field of a message; ValueError where it does not parse."""
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
            raise ValueError(f"wire type {kind}")
        if at + size > end:
            raise ValueError("a field reaches beyond its message")
        yield number, data[at : at + size]
        at += size


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """The number at `at` and where it ends; negative numbers come as in two's complement."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value - (1 << 64) if value >> 63 else value), at
        shift += 7


def message(value: Value) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number where a message should be")
    return value


def example(data: memoryview) -> dict[str, list[Value]]:
    """A `tf.train.Example` as lists of numbers or byte views by feature name (no floats)."""
    found: dict[str, list[Value]] = {}
    for _, features in fields(data):
        for _, entry in fields(message(features)):
            pair = dict(fields(message(entry)))
            name = bytes(message(pair[1])).decode("utf-8")
            found[name] = _feature(message(pair[2])) if 2 in pair else []
    return found


def _feature(data: memoryview) -> list[Value]:
    values: list[Value] = []
    for kind, listed in fields(data):
        for _, value in fields(message(listed)):
            if kind == 3 and not isinstance(value, int):  # packed integers
                at = 0
                while at < len(value):
                    number, at = varint(value, at)
                    values.append(number)
            elif kind in (1, 3):
                values.append(value)
    return values


def datum(data: memoryview) -> dict[int, Value]:
    """A Caffe `Datum`: 1 channels, 2 height, 3 width, 4 data, 5 label, 7 encoded."""
    return dict(fields(data))


def write_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return write_varint(number << 3) + write_varint(value)
    return write_varint(number << 3 | 2) + write_varint(len(value)) + value
