"""`thresher select NAME`: choose which training images to keep, with any filter."""

import dataclasses
import functools
import inspect
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from thresher.cli.commands import Outcome, values_of
from thresher.cli.packs import open_pack
from thresher.errors import AlreadyExistsError, InvalidValueError
from thresher.options import option
from thresher.select.filters.registry import load_filter

if TYPE_CHECKING:
    from thresher.data.selection import Selection


@dataclass(kw_only=True)
class SelectConfig:
    data: str
    """Pack to select from: a folder, or a name in the cache."""
    out: Path
    """Selection to write, a new S.parquet; S.json beside it records how it was made."""
    export: tuple[Path, ...] = ()
    """Also write the kept samples: .txt files of ids, .npy files of positions (`positions`)."""
    positions: Literal["train", "pack"] = option("train", only_with={"export": True})
    """What exported positions count: the training samples in pack order, as FFCV's `indices` do, or
    all samples of the pack."""


def command(name: str) -> tuple[type, Callable[[Any], Outcome]]:
    """Return the configuration class and the function of `thresher select NAME`."""

    def run(config: Any) -> Outcome:
        return select(name, config)

    # The sections of the docstring after the text are about Python.
    doc = inspect.cleandoc(load_filter(name).__doc__ or "")
    run.__doc__ = re.split(r"^(?:Attributes|Args|Examples?):$", doc, flags=re.M)[0].rstrip()
    return config_class(name), run


@functools.cache
def config_class(name: str) -> type:
    """Return a dataclass of input and output, the sources that a filter needs, and its options."""
    from thresher.select.inputs import SOURCES

    filter = load_filter(name)
    sources: list[type] = []
    for need in filter.needs:
        if need not in SOURCES:  # made from the pack
            continue
        # A class that another one already includes would break the order of bases.
        if not any(issubclass(chosen, SOURCES[need]) for chosen in sources):
            sources = [c for c in sources if not issubclass(SOURCES[need], c)] + [SOURCES[need]]
    bases = (filter, *reversed(sources), SelectConfig)
    names = [field.name for base in bases for field in dataclasses.fields(base)]
    for repeated in {name for name in names if names.count(name) > 1}:
        raise InvalidValueError(
            f'filter "{name}" declares the option "{repeated}", which `thresher select` uses itself'
        )
    return dataclasses.make_dataclass(filter.__name__, [], bases=bases, kw_only=True)


def select(name: str, config: Any) -> Outcome:
    """Run the filter `name` with an instance of `config_class(name)`."""
    from thresher.select.inputs import FilterSources
    from thresher.select.run import check_new
    from thresher.study.selecting import run_selection

    check_new(config.out)
    for path in config.export:
        if path.exists():
            raise AlreadyExistsError(f"{path} exists already", "choose another name or remove it")
        if path.suffix not in (".txt", ".npy"):
            raise InvalidValueError(f"export must end in .txt or .npy, got {path}", "", "export")
    filter = load_filter(name)(**values_of(config, load_filter(name)))
    pack = open_pack(config.data)
    sources = FilterSources(**values_of(config, FilterSources))
    selection = run_selection(filter, pack, sources, config.out)
    for path in config.export:
        selection.export(path, pack, config.positions)
    return _outcome(selection, config.out)


def _outcome(selection: "Selection", out: Path) -> Outcome:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    shown = ("method", "kept", "dropped", "dropped_share", "eps", "min_samples", "per_class", "kl")
    names = (*shown, "stability", "warnings", "seconds")
    data: dict[str, Any] = {name: selection.meta.get(name) for name in names}
    table = Table(box=None, pad_edge=False)
    table.add_column("class", overflow="fold")
    for name in ("kept", "dropped", "share"):
        table.add_column(name, justify="right")
    for name, row in [*data["per_class"].items(), ("all", data)]:
        counts = (f"{row['kept']:,}", f"{row['dropped']:,}", f"{100 * row['dropped_share']:.2f} %")
        table.add_row(name, *counts)
    lines = []
    if isinstance(data["eps"], float):
        lines.append(f"eps {data['eps']:.4g}, min_samples {data['min_samples']}")
    elif isinstance(data["eps"], dict):
        low, high = min(data["eps"].values()), max(data["eps"].values())
        lines.append(f"eps {low:.4g} … {high:.4g} by class, min_samples {data['min_samples']}")
    if data["kl"] is not None:
        lines.append(f"KL divergence of t-SNE {data['kl']:.4f}")
    if s := data["stability"]:
        lines.append(
            f"{s['votes']} votes agree with Jaccard {s['jaccard']:.3f} "
            f"(random choices: {s['expected_at_random']:.3f})"
        )
    spent, command = (
        f"{data['seconds']['total']:,.1f} s",
        shlex.join(["thresher", "view", str(out)]),
    )
    end = Text(f"{out} in {spent}; look at it: {command}", no_wrap=True)
    return Outcome({**data, "out": str(out)}, Group(table, *lines, end))
