"""Uses every public name as a user would; `make lint` checks it with `mypy --strict`."""

from thresher import (
    Features,
    NetworkFilter,
    Pack,
    Selection,
    Study,
    ThresherError,
    TrainConfig,
    __version__,
)


def read(data: str) -> int:
    """Count the training samples of a pack."""
    try:
        pack: Pack = Pack.open(data)
    except ThresherError as error:
        print(error.what, error.fix)
        return 0
    return len(pack.indices("train"))


def names() -> list[type]:
    """Name the classes that the functions above do not use."""
    print(__version__)
    return [Features, NetworkFilter, Selection, Study, TrainConfig]
