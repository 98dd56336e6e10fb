"""Which commands there are, and what a command gives back."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Command:
    """`words` as typed, a line for `--help`, and `module:function` of one dataclass argument."""

    words: str
    summary: str
    target: str


@dataclass(frozen=True)
class Outcome:
    """What a command found: `data` for machines (one JSON object), `text` for people.

    `text` is a string or anything rich can print; None prints nothing. `then` runs once that is
    printed, for a command that goes on (a server tells its address first).
    """

    data: dict[str, Any]
    text: Any = None
    then: Callable[[], None] | None = None


GROUPS = {
    "data": "get, make, check and read packs of images",
    "select": "choose which training images to keep",
    "study": "many runs, and a verdict with error bars",
    "scale": "what communication costs, and how far it scales",
}

COMMANDS = (
    Command("demo", "the whole story on data that ships with Thresher", "thresher.cli.demo:demo"),
    Command("data get", "fetch a known data set into the cache", "thresher.cli.data:get"),
    Command("data pack", "pack images of your own into one container", "thresher.cli.data:pack"),
    Command("data info", "what a pack holds", "thresher.cli.data:info"),
    Command("data verify", "check every byte of a pack", "thresher.cli.data:verify"),
    Command("data export", "write a pack out in another format", "thresher.cli.data:export"),
    Command("data bench", "measure reading speed by container", "thresher.cli.data:bench"),
    Command("train", "train one network, at any batch on any workers", "thresher.cli.train:train"),
    Command("embed", "penultimate features of a trained network", "thresher.cli.embed:embed"),
    *(
        Command(f"select {name}", summary, f"thresher.cli.select:{name.replace('-', '_')}")
        for name, summary in {
            "network": "drop what DBSCAN calls noise on the network's own map",
            "random": "drop as many at random: the control",
            "grid": "stratified sampling of the map's grid cells",
            "recursive": "retrain on what is kept and filter again, n rounds",
            "el2n": "drop by the error's norm early in training",
            "forgetting": "drop by how often a sample was unlearned",
            "near-duplicates": "drop near copies within a class",
            "label-errors": "drop what confident learning calls mislabelled",
            "union": "drop what any of several selections drops",
            "intersection": "drop what all of several selections drop",
            "vote": "drop what most of several selections drop",
        }.items()
    ),
    Command("view", "look at the map and overrule the filter", "thresher.cli.view:view"),
    Command("study run", "run a study, or go on with it", "thresher.cli.study:run"),
    Command("study status", "how far a study is", "thresher.cli.study:status"),
    Command("study report", "verdicts, tables and figures of a study", "thresher.cli.study:report"),
    Command(
        "scale measure", "time layers, all-reduce and input here", "thresher.cli.scale:measure"
    ),
    Command("scale predict", "step time on any cluster", "thresher.cli.scale:predict"),
    Command("scale compare", "engines and rules side by side", "thresher.cli.scale:compare"),
    Command("plan", "which batch, rate and workers to use", "thresher.cli.plan:plan"),
    Command("reproduce", "run a claim of the papers", "thresher.cli.reproduce:reproduce"),
)
