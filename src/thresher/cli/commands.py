"""The table of commands, and what a command returns."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from thresher.select.filters.registry import SUMMARIES


@dataclass(frozen=True)
class Command:
    """A command: the words typed, a line for `--help`, and `module:function`.

    The function takes one configuration dataclass and returns an `Outcome`. For `select NAME` it
    is a factory instead: it takes NAME and returns the configuration class and the function.
    """

    words: str
    summary: str
    target: str

    def load(self) -> tuple[type, Callable[[Any], "Outcome | None"]]:
        """Import the command; return its configuration class and its function."""
        module, _, name = self.target.partition(":")
        function = getattr(importlib.import_module(module), name)
        if self.words.startswith("select "):
            return function(self.words.partition(" ")[2])
        (config,) = (hint for key, hint in get_type_hints(function).items() if key != "return")
        return config, function


@dataclass(frozen=True)
class Outcome:
    """The result of a command."""

    data: Any
    """For `--json`: a dictionary, or a dataclass."""
    text: Any = None
    """For people: a string, anything rich can print, or a function that returns it and is called
    only without `--json`; None prints nothing."""
    then: Callable[[], None] | None = None
    """Called after printing, by a command that goes on (a server prints its address first)."""
    code: int = 0
    """The exit code."""


def values_of(config: Any, kind: type) -> dict[str, Any]:
    """Return what `config` has for the fields of the dataclass `kind`, by name."""
    names = [field.name for field in fields(kind)]
    return {name: getattr(config, name) for name in names if hasattr(config, name)}


GROUPS = {
    "data": "get, make, check and export packs of images",
    "select": "choose which training images to keep",
    "study": "many runs, and a verdict with error bars",
    "scale": "measure and predict the cost of communication",
}

SELECT = "thresher.cli.select:command"
COMMANDS = (
    Command("demo", "run the full pipeline on the bundled digits data", "thresher.cli.demo:demo"),
    Command("data get", "download a known data set into the cache", "thresher.cli.data:get"),
    Command("data pack", "pack your own images into one container", "thresher.cli.data_pack:pack"),
    Command("data info", "describe a pack", "thresher.cli.data:info"),
    Command("data verify", "check every byte of a pack", "thresher.cli.data:verify"),
    Command("data export", "write a pack in another format", "thresher.cli.data:export"),
    Command("data flip", "copy a pack with some wrong labels", "thresher.cli.data_pack:flip"),
    Command("data bench", "measure reading speed by container", "thresher.cli.data_bench:bench"),
    Command("audit", "find copies, leaks, wrong labels, broken images", "thresher.cli.audit:audit"),
    Command("train", "train one network on any number of workers", "thresher.cli.train:train"),
    Command("embed", "compute the penultimate features of a network", "thresher.cli.embed:embed"),
    *(
        Command(f"select {name}", line[:1].lower() + line[1:].rstrip("."), SELECT)
        for name, line in SUMMARIES.items()
    ),
    Command("view", "review a selection on its map", "thresher.cli.view:view"),
    Command("study run", "run a study, or resume it", "thresher.cli.study:run"),
    Command("study status", "show the progress of a study", "thresher.cli.study:status"),
    Command("study report", "write verdicts, tables and figures", "thresher.cli.study:report"),
    Command("study import", "compare runs made elsewhere", "thresher.cli.study:import_runs"),
    Command("scale measure", "time layers, all-reduce and input", "thresher.cli.scale:measure"),
    Command("scale predict", "predict the step time on a cluster", "thresher.cli.scale:predict"),
    Command("scale compare", "compare engines and scaling rules", "thresher.cli.compare:compare"),
    Command("plan", "recommend batch size, learning rate and workers", "thresher.cli.plan:plan"),
    Command("reproduce", "run a claim of the papers", "thresher.cli.reproduce:reproduce"),
)
