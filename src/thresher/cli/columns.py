"""Tables as plain text, independent of the terminal's width."""

from collections.abc import Sequence


def columns(title: str, head: str, rows: Sequence[Sequence[str]]) -> str:
    """Align numbers to the right and words to the left; `head` names the columns: "model|rule"."""
    heads = head.split("|")
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    right = [all(_number(row[i]) for row in rows) for i in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(cells, widths, right, strict=True)
        ]
        return "  ".join(padded).rstrip()

    rule = "  ".join("─" * width for width in widths)
    return "\n".join([title, "", line(heads), rule, *map(line, rows)])


def _number(cell: str) -> bool:
    return not cell or cell[0].isdigit() or cell[0] in "–-"
