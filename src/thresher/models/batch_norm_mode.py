"""The modes of batch norm, as a user writes them; no torch here, so that checks are quick."""

from thresher.errors import InvalidValueError


def parse(mode: str) -> tuple[str, int]:
    """Split `local`, `sync` or `ghost:N` into its kind and its N (0 without one)."""
    kind, colon, size = mode.partition(":")
    if mode in ("local", "sync"):
        return mode, 0
    if kind == "ghost" and colon and size.isdecimal() and int(size) > 0:
        return kind, int(size)
    raise InvalidValueError(
        f'batch_norm cannot be "{mode}"',
        "use local, sync or ghost:N, such as ghost:32 or ghost:1/8",
        "batch_norm",
    )


def for_batch(mode: str, batch: int) -> str:
    """Return `ghost:1/N`, groups of an N-th of the batch, as the `ghost:SIZE` that it means."""
    kind, _, parts = mode.partition(":1/")
    if kind == "ghost" and parts.isdecimal() and int(parts) > 0:
        return f"ghost:{-(-batch // int(parts))}"
    return mode


def alignment(mode: str) -> int:
    """Return N: workers' parts and pieces must begin at multiples of N samples."""
    return parse(mode)[1] or 1


def in_one_piece(mode: str) -> bool:
    """Return whether a worker's part of the batch must pass through the network undivided."""
    return mode == "sync"
