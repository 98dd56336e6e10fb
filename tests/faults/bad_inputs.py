"""The table of bad inputs: a command line, and what is done to the folder before it runs.

The words of a case are separated by spaces. Cases of flags out of range are made from the
declarations of the options; the others are written down here.
"""

import json
import shutil
import typing
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from thresher.cli.commands import COMMANDS
from thresher.options import OptionInfo, describe

Damage = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """A bad input; `damage` is applied to the file or folder `target` first."""

    words: str
    target: str = ""
    damage: Damage | None = None
    note: str = ""

    @property
    def name(self) -> str:
        return " ".join(filter(None, [self.words, self.target, self.note]))


# ---- damage -----------------------------------------------------------------------------------


def cut(path: Path) -> None:
    """Keep the first half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


def garbage(path: Path) -> None:
    """Replace the content by bytes that are neither text nor any format."""
    path.write_bytes(bytes(range(256)) * 8)


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_text(text: str) -> Damage:
    return lambda path: path.write_text(text)


def deep(path: Path) -> None:
    """JSON that is nested deeper than Python recurses."""
    path.write_text("[" * 100_000)


def with_field(**values: Any) -> Damage:
    """Set fields of a JSON object."""

    def damage(path: Path) -> None:
        content = json.loads(path.read_text())
        content.update(values)
        path.write_text(json.dumps(content))

    return damage


def without_field(name: str) -> Damage:
    def damage(path: Path) -> None:
        content = json.loads(path.read_text())
        del content[name]
        path.write_text(json.dumps(content))

    return damage


def table_with(**columns: Any) -> Damage:
    """Replace columns of a Parquet file; None removes one."""

    def damage(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        for name, value in columns.items():
            at = table.schema.names.index(name)
            table = table.remove_column(at)
            if value is not None:
                table = table.append_column(name, pa.array([value] * len(table)))
        pq.write_table(table, path)

    return damage


# ---- a good command line for every command -----------------------------------------------------

TRAIN = "train --data pack --out out --epochs 1 --device cpu"
EMBED = "embed --data pack --run run --out out"
NETWORK = "select network --data pack --features features --out out.parquet"
MEASURE = "scale measure --model tiny --out out.json"
PREDICT = "scale predict --profile profile.json"
PLAN = "plan --data pack"
IMPORT = "study import runs.csv --compare arm --metric accuracy --out out"
GOOD = {
    "data get": "data get digits",
    "data pack": "data pack images out",
    "data export": "data export pack out",
    "data flip": "data flip pack out",
    "data bench": "data bench pack",
    "train": TRAIN,
    "embed": EMBED,
    "view": "view sel.parquet --no-browser",
    "study run": "study run study.toml --out out",
    "study import": IMPORT,
    "scale measure": MEASURE,
    "scale predict": PREDICT,
    "scale compare": "scale compare",
    "plan": PLAN,
    "reproduce": "reproduce mccord-batch",
    "audit": "audit --data pack --features features --out out",
    "select ccs": "select ccs sel.parquet --data pack --out out.parquet",
    "select vote": "select vote sel.parquet foreign.parquet --data pack --out out.parquet",
}


RECORDED = ("select el2n", "select forgetting", "select aum", "select uncertainty")
"""Filters that need the record of a run."""


def _good(words: str) -> str:
    if words in GOOD:
        return GOOD[words]
    source = "--run run" if words in RECORDED else "--features features"
    source = "" if words == "select random" else source
    return f"{words} --data pack {source} --out out.parquet"


def _numeric(info: OptionInfo) -> bool:
    members = {info.type, *typing.get_args(info.type)}
    members |= {inner for member in members for inner in typing.get_args(member)}
    return bool(members & {int, float}) and not info.positional


def _outside(info: OptionInfo) -> Iterator[str]:
    """Yield values just outside the range of an option, and what is not a number."""
    low = info.bounds.ge if info.bounds.ge is not None else info.bounds.gt
    high = info.bounds.le if info.bounds.le is not None else info.bounds.lt
    if low is not None:
        # A lower bound that is exclusive is itself outside.
        yield f"{low:g}" if info.bounds.gt is not None else f"{low - 1:g}"
    elif high is not None:
        yield repr(high) if info.bounds.lt is not None else f"{high + 1:g}"
    else:
        yield "1e999"
    yield "nan"


def flag_cases() -> Iterator[Case]:
    """Yield a case for every value just outside the range of every numeric or worded option."""
    for command in COMMANDS:
        config, _ = command.load()
        for info in describe(config):
            if info.default is MISSING and info.positional:
                continue
            if info.choices and not info.positional:
                yield Case(f"{_good(command.words)} {info.flag} nonsense")
            elif _numeric(info):
                for value in _outside(info):
                    yield Case(f"{_good(command.words)} {info.flag}={value}")


# ---- written down -----------------------------------------------------------------------------


def _many(words: str, target: str, *damages: Damage) -> list[Case]:
    names = [getattr(damage, "__name__", "") for damage in damages]
    return [
        Case(words, target, damage, f"{name}-{n}")
        for n, (name, damage) in enumerate(zip(names, damages, strict=True))
    ]


WORDS = [
    "nothing",
    "data nothing",
    "study nothing",
    "select nothing --data pack --out out.parquet",
    "select os:system --data pack --out out.parquet",
    "select ../x:y --data pack --out out.parquet",
    "scale nothing",
    "train",
    "train --data pack",
    "train --data pack --out out --nothing 1",
    "train --data nothing --out out",
    "train --data file.txt --out out",
    "train --data empty --out out",
    "train --data /dev/null --out out",
    "train --data cifar10 --out out",
    f"{TRAIN} --model nothing",
    f"{TRAIN} --model os:system",
    f"{TRAIN} --model json:dumps",
    f"{TRAIN} --model builtins:input",
    f"{TRAIN} --model ../x:y",
    f"{TRAIN} --model :",
    f"{TRAIN} --selection nothing.parquet",
    f"{TRAIN} --selection file.txt",
    f"{TRAIN} --selection empty",
    f"{TRAIN} --selection foreign.parquet",
    f"{TRAIN} --weights nothing.safetensors",
    f"{TRAIN} --weights file.txt",
    f"{TRAIN} --weights empty",
    f"{TRAIN} --weights features/features.npy",
    f"{TRAIN} --batch-norm nothing",
    f"{TRAIN} --batch-norm ghost:0",
    f"{TRAIN} --batch-norm ghost:x",
    f"{TRAIN} --batch-norm ghost:",
    f"{TRAIN} --dynamic nothing",
    f"{TRAIN} --dynamic infobatch:2",
    f"{TRAIN} --dynamic infobatch:nan",
    f"{TRAIN} --micro-batch x",
    f"{TRAIN} --step-epochs 1,x",
    f"{TRAIN} --validation 1e9",
    f"{TRAIN} --workers 2 --batch-size 1",
    f"{TRAIN} --crop 100",
    f"{TRAIN} --device cuda",
    f"{TRAIN} --graph on",
    "train --data pack --out run --epochs 1",
    "train --data pack --out run --epochs 2 --resume",
    "train --data pack --out file.txt",
    "train --data pack --out file.txt/run",
    "train --data pack --out images",
    f"train --data pack --epochs 1 --out {'x' * 300}",
    "train --data pack --epochs 1 --out /proc/nothing/run",
    "train --data encoded --out out --epochs 1",
    "embed --data pack --out out",
    "embed --data pack --run nothing --out out",
    "embed --data pack --run file.txt --out out",
    "embed --data pack --run empty --out out",
    "embed --data pack --run run --out file.txt",
    "embed --data pack --run run --out file.txt/x",
    "embed --data pack --run run --out empty",
    "embed --data pack --run run --out features",
    "embed --data pack --model tiny --out out",
    "embed --data pack --model tiny --weights file.txt --out out",
    "embed --data pack --model nothing --weights run/model.safetensors --out out",
    "embed --data pack --model resnet18 --weights run/model.safetensors --out out",
    "embed --data pack --run run --weights run/model.safetensors --out out",
    "embed --data nothing --run run --out out",
    "embed --data encoded --run run --out out",
    "embed --data pack --run run --split nothing --out out",
    "embed --data pack --run run --split validation --out new/deep/out",
    f"embed --data pack --run run --out {'x' * 300}",
    "embed --data pack --model hf:nothing --out out",
    "embed --data pack --model hf:empty --out out",
    "embed --data pack --model hf:file.txt --out out",
    "embed --data pack --model hf:run --out out",
    "embed --data pack --model hf: --out out",
    "embed --data pack --model hf:empty --weights run/model.safetensors --out out",
    "embed --data pack --run run --pooling cls --out out",
    f"{TRAIN} --model hf:empty",
    "audit --out out",
    "audit --data pack",
    "audit nothing --out out",
    "audit file.txt --out out",
    "audit empty --out out",
    "audit /dev/null --out out",
    "audit pack --data pack --out out",
    "audit pack --out file.txt",
    "audit pack --out images",
    "audit pack --out file.txt/x",
    "audit pack --features nothing --out out",
    "audit pack --features empty --out out",
    "audit other --features features --out out",
    "audit pack --run nothing --out out",
    "audit pack --run run --features features --out out",
    "audit pack --model hf:empty --out out",
    "audit pack --model tiny --out out",
    "audit pack --network nothing --out out",
    "select ccs --data pack --out out.parquet",
    "select ccs sel.parquet foreign.parquet --data pack --out out.parquet",
    "select ccs foreign.parquet --data pack --out out.parquet",
    "select aum --data pack --out out.parquet",
    "select uncertainty --data pack --run nothing --out out.parquet",
    "select outliers --data other --features features --out out.parquet",
    "select knn --data pack --features nothing --out out.parquet",
    "select network --data pack --out out.parquet",
    "select network --data pack --features nothing --out out.parquet",
    "select network --data pack --features file.txt --out out.parquet",
    "select network --data pack --features empty --out out.parquet",
    "select network --data pack --features arrays.npz --out out.parquet",
    "select network --data other --features features --out out.parquet",
    "select network --data nothing --features features --out out.parquet",
    "select network --data pack --features features --run run --out out.parquet",
    "select network --data pack --features features --out sel.parquet",
    "select network --data pack --features features --out out.txt",
    "select network --data pack --features features --out empty",
    "select network --data pack --features features --out file.txt/out.parquet",
    f"{NETWORK} --drop 0.1 --eps 1",
    f"{NETWORK} --eps x",
    f"{NETWORK} --eps -1",
    f"{NETWORK} --export kept.csv",
    f"{NETWORK} --export file.txt",
    f"{NETWORK} --also nothing",
    f"{NETWORK} --also file.txt",
    f"{NETWORK} --device tpu",
    "select el2n --data pack --run empty --out out.parquet",
    "select el2n --data pack --run study/trials --out out.parquet",
    "select el2n --data other --run run --out out.parquet",
    "select forgetting --data pack --run nothing --out out.parquet",
    "select forgetting --data pack --out out.parquet",
    "select recursive --data pack --features features --out out.parquet",
    "select label-errors --data other --features features --out out.parquet",
    "select union --data pack --out out.parquet",
    "select union nothing.parquet sel.parquet --data pack --out out.parquet",
    "select union foreign.parquet sel.parquet --data pack --out out.parquet",
    "select vote sel.parquet file.txt --data pack --out out.parquet",
    "select intersection empty sel.parquet --data pack --out out.parquet",
    "view",
    "view nothing.parquet --no-browser",
    "view file.txt --no-browser",
    "view empty --no-browser",
    "view sel.parquet --data other --no-browser",
    "view sel.parquet --data nothing --no-browser",
    "view sel.parquet --no-browser --export empty",
    "view sel.parquet --no-browser --export file.txt",
    "view sel.parquet --no-browser --export file.txt/x",
    "view sel.parquet --no-browser --host not..a..host",
    "data get nothing",
    "data get cifar10 --from file.txt",
    "data get cifar10 --from empty",
    "data get cifar10 --from nothing",
    "data get cifar100 --from arrays.npz",
    "data get fashion-mnist --from file.txt",
    "data get fashion-mnist --from empty",
    "data pack nothing out",
    "data pack empty out",
    "data pack file.txt out",
    "data pack pack out",
    "data pack /dev/null out",
    "data pack images empty",
    "data pack images file.txt",
    "data pack images file.txt/out",
    f"data pack images {'x' * 300}",
    "data pack images /proc/nothing/out",
    "data pack images out --format nothing",
    "data pack images out --format os:system",
    "data pack images out --format npz",
    "data pack images out --format lmdb",
    "data pack images out --format hdf5",
    "data pack images out --format tfrecord",
    "data pack images out --format webdataset",
    "data pack arrays.npz out --classes nothing.txt",
    "data pack arrays.npz out --classes empty",
    "data pack arrays.npz out --classes arrays.npz",
    "data pack arrays.npz out --classes file.txt",
    "data pack images out --classes file.txt",
    "data info nothing",
    "data info file.txt",
    "data info empty",
    "data verify nothing",
    "data verify images",
    "data export nothing out",
    "data export pack empty",
    "data export pack file.txt",
    "data export pack out --format nothing",
    "data export pack out --selection foreign.parquet",
    "data export pack out --selection file.txt",
    f"data export pack {'x' * 300}",
    "data flip nothing out",
    "data flip pack empty",
    "data flip pack file.txt/x",
    "data bench nothing",
    "data bench pack --out file.txt",
    "data bench pack --folder file.txt",
    "study run nothing.toml --out out",
    "study run file.txt --out out",
    "study run empty --out out",
    "study run arrays.npz --out out",
    "study run study.toml --out file.txt",
    "study run study.toml --out file.txt/x",
    "study run study.toml --out out --executor nothing",
    "study run study.toml --out out --workers 2",
    "study status nothing",
    "study status empty",
    "study status file.txt",
    "study report nothing",
    "study report empty",
    "study report study --out file.txt",
    "study report study --out file.txt/x",
    f"{TRAIN} --config nothing.toml",
    f"{TRAIN} --config file.txt",
    f"{TRAIN} --config arrays.npz",
    f"{TRAIN} --config empty",
    f"{TRAIN} --config study.toml",
    f"{TRAIN} --log nothing",
    "study import nothing.csv --out out",
    "study import file.txt --out out",
    "study import empty --out out",
    "study import arrays.npz --out out",
    "study import runs.csv --metric nothing --out out",
    "study import runs.csv --compare nothing --out out",
    "study import runs.csv --axes nothing --out out",
    "study import runs.csv --out study",
    "study import runs.csv --out file.txt",
    "scale measure --model nothing --out out.json",
    "scale measure --model os:system --out out.json",
    f"{MEASURE} --data nothing",
    "scale measure --model tiny --out file.txt/x.json",
    "scale predict --profile nothing.json",
    "scale predict --profile file.txt",
    "scale predict --profile empty",
    "scale predict --profile sel.json",
    f"{PREDICT} --cluster nothing",
    f"{PREDICT} --cluster file.txt",
    f"{PREDICT} --cluster empty",
    f"{PREDICT} --model resnet18",
    f"{PREDICT} --compress nothing",
    f"{PREDICT} --workers 0",
    f"{PREDICT} --workers 1,x",
    f"{PREDICT} --cluster 10gbe --figure file.txt/x.png",
    "scale compare --models nothing",
    "scale compare --hosts 2 --link nothing",
    "scale compare --hosts 2 --data nothing",
    "plan",
    "plan --data nothing",
    "plan --from nothing.csv",
    "plan --from file.txt",
    "plan --from sel.parquet",
    "plan --from empty",
    "plan --from pack",
    f"{PLAN} --from file.txt",
    f"{PLAN} --figure file.txt/x.png --profile nothing.json",
    f"{PLAN} --model nothing",
    f"{PLAN} --cluster nothing",
    f"{PLAN} --budget nothing",
    f"{PLAN} --profile nothing.json",
    f"{PLAN} --profile file.txt",
    "reproduce nothing",
    "reproduce mccord-batch --preset nothing",
    "reproduce mccord-batch --out file.txt",
    "reproduce jitsev-records --table nothing.toml",
    "reproduce jitsev-records --table file.txt",
    "reproduce ornl-fig8 --table file.txt",
    "demo --out file.txt",
    "demo --out file.txt/x",
]

JSON = (cut, empty, garbage, deep, as_folder, as_text("[]"), as_text("null"), as_text("{}"))
FILES = (
    *_many("data get digits --from file.txt", "home/packs/digits", shutil.rmtree),
    *_many("data get digits --from nothing", "home/packs/digits", shutil.rmtree),
    *_many("data info pack", "pack/pack.json", *JSON),
    *_many(
        "train --data pack --out out --epochs 1",
        "pack/pack.json",
        with_field(format=99),
        with_field(format="one"),
        with_field(classes=[]),
        with_field(classes="abc"),
        with_field(classes=[1, 2]),
        with_field(mean=[float("nan")]),
        with_field(mean=[]),
        with_field(splits=None),
        with_field(splits={"train": -1}),
        with_field(image_shape=[8, 8]),
        with_field(image_shape=[0, 8, 1]),
        with_field(shards=[]),
        with_field(shards=[{"file": "../x", "samples": 1, "bytes": 1, "sha256": ""}]),
        without_field("fingerprint"),
        without_field("shards"),
    ),
    *_many("data info pack", "pack/images.arrow", cut, cut_end, empty, garbage, remove, as_folder),
    *_many(
        "data verify pack",
        "pack/pack.json",
        with_field(fingerprint="0" * 32),
        with_field(splits={"train": 3}),
        with_field(std=[0.5]),
        with_field(classes=[*"abcdefghij"]),
    ),
    *_many(f"{TRAIN} --selection sel.parquet", "sel.json", *JSON, remove),
    *_many(
        f"{TRAIN} --selection sel.parquet",
        "sel.json",
        with_field(fingerprint=None),
        with_field(fingerprint="0" * 32),
        with_field(fingerprint=7),
        with_field(format=99),
        with_field(format=None),
    ),
    *_many(
        "data export pack out --selection sel.parquet",
        "sel.parquet",
        *(cut, cut_end, empty, garbage, remove, as_folder),
        table_with(keep=None),
        table_with(keep="yes"),
        table_with(id=None),
        table_with(id=7),
        table_with(id="twice"),
        table_with(label="x"),
    ),
    *_many(
        "view sel.parquet --no-browser --export page",
        "sel.parquet",
        *(cut, garbage, table_with(x="left"), table_with(score="high"), table_with(keep=1.5)),
    ),
    *_many(
        f"{TRAIN} --selection sel.parquet",
        "sel.overrides.jsonl",
        as_text("[]\n"),
        as_text('{"ids": 7}\n'),
        as_text('{"kind": "drop", "ids": ["a"], "keep": "no", "time": 1, "reason": 1}\n{}\n'),
        as_text('{"format": 99}\n'),
        Path.mkdir,
    ),
    *_many(
        "embed --data pack --run run --out out",
        "run/run.json",
        *JSON,
        with_field(config=None),
        with_field(config=[]),
        with_field(data=None),
        with_field(format=99),
    ),
    *_many(
        "embed --data pack --run run --out out",
        "run/model.safetensors",
        *(cut, cut_end, empty, garbage, remove, as_folder, as_text("{}")),
    ),
    *_many(
        "embed --data pack --model tiny --weights run/model.safetensors --out out",
        "run/model.safetensors",
        *(cut, empty, garbage, remove, as_folder),
    ),
    *_many(
        "select el2n --data pack --run run --out out.parquet",
        "run/dynamics.parquet",
        *(cut, cut_end, empty, garbage, remove, as_folder, table_with(id=None), table_with(id="x")),
    ),
    *_many(
        f"{NETWORK} --reduce pca",
        "features/features.npy",
        *(cut, empty, garbage, remove, as_folder),
    ),
    *_many(
        f"{NETWORK} --reduce pca",
        "features/features.json",
        *JSON,
        with_field(samples=-1),
        with_field(dimension="x"),
        with_field(format=99),
    ),
    *_many(
        f"{NETWORK} --reduce pca",
        "features/index.parquet",
        *(cut, empty, garbage, remove, as_folder, table_with(id=None), table_with(id="x")),
    ),
    *_many(
        "select label-errors --data pack --features features --probabilities own --out o.parquet",
        "features/probabilities.npy",
        *(cut, empty, garbage, remove),
    ),
    *_many(
        PREDICT,
        "profile.json",
        *JSON,
        with_field(layers=None),
        with_field(layers=[]),
        with_field(batches=[]),
        with_field(parameters=-1),
        with_field(image_size="large"),
        with_field(device={}),
        with_field(gradient_bytes=float("inf")),
        with_field(format=99),
    ),
    *_many(
        "study run study.toml --out out",
        "study.toml",
        cut,
        empty,
        garbage,
        as_folder,
        remove,
        *(
            as_text(text)
            for text in (
                "seeds = 1",
                'seeds = "x"\n[base]\ndata = "pack"',
                'seeds = 100000000\n[base]\ndata = "pack"',
                'seeds = 0\n[base]\ndata = "pack"',
                'seeds = [-1]\n[base]\ndata = "pack"',
                'seeds = 1\nnothing = 2\n[base]\ndata = "pack"',
                'seeds = 1\nmargin = nan\n[base]\ndata = "pack"',
                'seeds = 1\nmetric = "speed"\n[base]\ndata = "pack"',
                'seeds = 1\n[base]\ndata = "nothing"',
                'seeds = 1\n[base]\ndata = "pack"\nlr = nan',
                'seeds = 1\n[base]\ndata = "pack"\nlr = "x"',
                'seeds = 1\n[base]\ndata = "pack"\nnothing = 1',
                'seeds = 1\n[base]\ndata = "pack"\nmodel = "nothing"',
                'seeds = 1\n[base]\ndata = "pack"\nselection = "nothing.parquet"',
                'seeds = 1\n[base]\ndata = "pack"\n[grid]\nlr = []',
                'seeds = 1\n[base]\ndata = "pack"\n[grid]\nlr = 0.1',
                'seeds = 1\n[base]\ndata = "pack"\n[grid]\nlr = [0.1, 0.1]',
                'seeds = 1\n[base]\ndata = "pack"\n[grid]\nnothing = [1, 2]',
                'seeds = 1\n[base]\ndata = "pack"\n[steps."../x"]\ndo = "train"',
                'seeds = 1\n[base]\ndata = "pack"\n[steps.a]\ndo = "nothing"',
                'seeds = 1\n[base]\ndata = "pack"\n[grid]\nselection = ["full", "a"]\n'
                '[steps.a]\ndo = "select"\nfilter = "nothing"',
                'seeds = 1\n[base]\ndata = "pack"\n[grid]\nselection = ["full", "a"]\n'
                '[steps.a]\ndo = "select"\nfilter = "random"\ndrop = 2.0',
                'seeds = 1\n[base]\ndata = "pack"\n[executor]\nkind = "nothing"',
                'seeds = 1\n[base]\ndata = "pack"\n[executor]\nkind = "local"\nworkers = -1',
                'seeds = 1\n[base]\ndata = "pack"\n[executor]\nkind = "local"\nnothing = 1',
                'seeds = 1\nformat = 99\n[base]\ndata = "pack"',
                'seeds = 1\n[base]\ncommand = "nothing-like-this {seed} {out}"',
                'seeds = 1\n[base]\ncommand = "true {seed}"',
                'seeds = 1\n[base]\ncommand = "true {seed} {out} {nothing}"',
                'seeds = 1\n[base]\ncommand = "true {seed} {out"',
                "seeds = 1\n[base]\ncommand = 3",
                'seeds = 1\n[base]\ncommand = "true {seed} {out}"\n[grid]\nlr = [1, 2]',
                'seeds = 1\ncompare = "nothing"\n[base]\ndata = "pack"\n[grid]\nlr = [1, 2]',
            )
        ),
    ),
    *_many("study status study", "study/study.toml", cut, empty, garbage, as_folder, remove),
    *_many("study report study", "study/study.toml", cut, empty, garbage, as_folder, remove),
    *_many(IMPORT, "runs.csv", empty, garbage, as_folder, remove),
    *_many("data pack arrays.npz out", "arrays.npz", cut, cut_end, empty, garbage, as_folder),
    *_many("data pack tars out", "tars/train-000000.tar", cut, empty, garbage),
    *_many("data pack records out", "records/train-00000-of-00001", cut_end, empty, garbage),
    *_many("data pack base out", "base/train/data.mdb", cut, empty, garbage, remove),
    *_many("data pack h5 out", "h5/images.h5", cut, empty, garbage, remove),
    *_many("data pack exported out", "exported/thresher.json", *JSON[:4], as_text("[]")),
    *_many("data pack exported out", "exported/samples.csv", garbage, as_text("id\n1\n")),
    *_many("data pack images out --strict", "images/a/1.png", cut, empty, garbage),
    *_many("data pack images out", "images/stray.png", as_text("not in a class folder")),
)

CASES = [*map(Case, WORDS), *FILES, *flag_cases()]
