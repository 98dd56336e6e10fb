"""Uses every public name as a user would; `make lint` checks it with `mypy --strict`."""

from pathlib import Path

import numpy as np

from thresher import (
    EL2NFilter,
    Features,
    ForgettingFilter,
    GridFilter,
    LabelErrorsFilter,
    NearDuplicatesFilter,
    NetworkFilter,
    Pack,
    RandomFilter,
    RecursiveFilter,
    RunResult,
    Selection,
    Study,
    ThresherError,
    TrainConfig,
    __version__,
    analyse,
    train,
    write_pack,
    write_report,
)


def run(folder: str) -> float | None:
    """Train and return the test accuracy."""
    try:
        result: RunResult = train(TrainConfig(data="digits", out=folder))
    except ThresherError as error:
        print(error.what, error.fix)
        return None
    return result.accuracy


def read(selection: str) -> np.ndarray:
    """Return the images that a selection keeps."""
    pack: Pack = Pack.open("digits")
    return pack.images(Selection.load(selection).indices(pack))


def judge(file: str, folder: str) -> Path:
    """Run a study and write its report."""
    study: Study = Study.load(file, folder)
    study.run()
    return write_report(analyse(study))


def names() -> list[type]:
    """Name what the functions above do not use."""
    print(__version__, write_pack, Features.open)
    return [
        EL2NFilter,
        ForgettingFilter,
        GridFilter,
        LabelErrorsFilter,
        NearDuplicatesFilter,
        NetworkFilter,
        RandomFilter,
        RecursiveFilter,
    ]
