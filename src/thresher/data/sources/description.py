"""`thresher.json`: what an exported data set says of itself, so that it comes back as it was.

Formats of others have no place for a name, class names or the shape of raw images. An export puts
them here (beside the shards, or as an attribute), and the sources honour it where they find it.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from thresher.errors import ThresherError
from thresher.paths import read_json, write_json

FILE = "thresher.json"


@dataclass(frozen=True)
class Description:
    name: str
    classes: list[str]
    image_shape: tuple[int, int, int] | None
    fingerprint: str = ""
    """Of the pack that was exported whole; empty where a selection was applied."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def write(self, folder: Path) -> None:
        write_json(folder / FILE, self.as_json())


def described(value: Any, where: Path | str) -> Description:
    """A description read from JSON; a damaged one is refused."""
    try:
        shape = value["image_shape"]
        found = Description(
            name=str(value["name"]),
            classes=[str(name) for name in value["classes"]],
            image_shape=None if shape is None else (int(shape[0]), int(shape[1]), int(shape[2])),
            fingerprint=str(value.get("fingerprint", "")),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        raise ThresherError(f"the description in {where} is damaged", "export it again") from None
    return found


def description_in(folder: Path) -> Description | None:
    """The description that lies in `folder`, if one does."""
    file = folder / FILE
    return described(read_json(file, "description"), file) if file.is_file() else None
