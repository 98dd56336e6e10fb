"""`thresher.json`: the description of an exported data set, so that it can be packed again.

Other formats cannot store a name, class names or the shape of raw images. An export writes them
to this file (or to an attribute), and the sources use it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thresher.errors import InvalidValueError
from thresher.options import from_mapping, option, to_mapping
from thresher.paths import read_json, write_json

FILE = "thresher.json"


@dataclass(frozen=True)
class Description:
    """Name, classes and image shape of an exported data set."""

    name: str
    classes: list[str]
    image_shape: tuple[int, int, int] | None = option(ge=1)
    fingerprint: str = ""
    """Of the exported pack; empty if a selection was applied."""

    def write(self, folder: Path) -> None:
        """Write `thresher.json` to `folder`."""
        write_json(folder / FILE, to_mapping(self))

    @classmethod
    def from_json(cls, value: Any, where: Path | str) -> "Description":
        """Check and convert JSON values that were read from `where`."""
        try:
            return from_mapping(cls, value)
        except InvalidValueError as error:
            raise InvalidValueError(
                f"the description in {where} is damaged: {error.what}", "export the data set again"
            ) from None

    @classmethod
    def find(cls, folder: Path) -> "Description | None":
        """Read `thresher.json` in `folder`, if there is one."""
        file = folder / FILE
        return cls.from_json(read_json(file, "description"), file) if file.is_file() else None
