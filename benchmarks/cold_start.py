"""How long a user waits for commands: from starting the process to its end.

    python -m benchmarks.cold_start --out benchmarks/results/cold_start
    python -m benchmarks.cold_start --data cifar10 --rounds 5 --out cold_start_cifar10

Every command runs in a process of its own, `--rounds` times; the table has the median. The map is
of made features, 512 numbers for each training sample of `--data`. A cold map starts without any
compiled kernel, the second one with those of the first, and neither finds a stored map. Writes
OUT.json and OUT.md, and with `--profile` OUT-cold.txt and OUT-second.txt: what the threads of one
more cold and one more second map do, and when (`benchmarks.timeline`).
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.machine import children_cpu, describe, page, table
from benchmarks.tsne_gpu import features
from thresher.data.pack import Pack
from thresher.models.features import FORMAT, FeaturePaths, FeaturesMeta
from thresher.paths import write_json, write_text

DIMENSION = 512
TABLE = "batch_size,samples\n32,60000\n64,62000\n128,70000\n256,95000\n512,150000\n"
STUDY = """
seeds = 2
[base]
data = "digits"
epochs = 0.2
evaluate_every = 0
[grid]
lr = [0.05, 0.1]
"""


@dataclass(frozen=True)
class Case:
    """A command, the longest that it may take, and what must be done before each round."""

    name: str
    limit_s: float
    arguments: list[str]
    before: Callable[[], None] = lambda: None
    serves: bool = False
    """Measure until the page answers, then end the process."""


@dataclass(frozen=True)
class Row:
    """The times of a command."""

    command: str
    limit_s: float
    median_s: float
    cpu_s: float
    """Median of the processor's time, which does not see who else uses the machine."""
    seconds: list[float]

    @property
    def holds(self) -> bool:
        return self.median_s <= self.limit_s


class Bench:
    """A folder with everything that the commands read."""

    def __init__(self, root: Path, data: str) -> None:
        self.root, self.data, self.made = root, data, 0
        self.environment = dict(os.environ)
        self.features, self.maps = root / "features", root / "features" / "maps"
        self.selection, self.study = root / "S.parquet", root / "study"
        write_features(self.features, Pack.open(data))
        self.clear_kernels()
        (root / "runs.csv").write_text(TABLE)
        (root / "study.toml").write_text(STUDY)
        study = ["study", "run", str(root / "study.toml"), "--out", str(self.study)]
        self.run([*study, "--executor", "in-process"])
        self.run([*self.select(0.05), "--out", str(self.selection)])

    def clear_kernels(self) -> None:
        """Forget compiled kernels, as on a machine that never ran this."""
        empty = tempfile.mkdtemp(dir=self.root)
        for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH"):
            self.environment[name] = f"{empty}/{name}"

    def clear_maps(self) -> None:
        shutil.rmtree(self.maps, ignore_errors=True)

    def select(self, drop: float) -> list[str]:
        source = ["--data", self.data, "--features", str(self.features)]
        return ["select", "network", *source, "--drop", str(drop)]

    def new_selection(self) -> list[str]:
        self.made += 1
        return ["--out", str(self.root / f"new-{self.made}.parquet")]

    def cases(self) -> list[Case]:
        def cold() -> None:
            self.clear_kernels()
            self.clear_maps()

        return [
            Case("select network, cold map", 5.0, self.select(0.05), cold),
            Case("select network, second map", 4.0, self.select(0.05), self.clear_maps),
            Case("select network, stored map", 1.5, self.select(0.1)),
            Case("view, to its first answer", 1.5, ["view", str(self.selection)], serves=True),
            Case("data info", 0.7, ["data", "info", self.data]),
            Case("study status", 0.7, ["study", "status", str(self.study)]),
            Case("study report --json", 0.7, ["study", "report", str(self.study), "--json"]),
            Case("plan --from a table", 0.7, ["plan", "--from", str(self.root / "runs.csv")]),
        ]

    def measure(self, case: Case, rounds: int) -> Row:
        seconds, cpu = [], []
        for _ in range(rounds):
            case.before()
            extra = self.new_selection() if case.name.startswith("select") else []
            command, used = self.first_answer if case.serves else self.run, children_cpu()
            seconds.append(command([*case.arguments, *extra]))
            cpu.append(children_cpu() - used)
        medians = statistics.median(seconds), statistics.median(cpu)
        return Row(case.name, case.limit_s, *medians, seconds)

    def profile(self, case: Case, out: Path) -> None:
        """Write to `out` what the threads of a command do, and when."""
        case.before()
        watched = ["-m", "benchmarks.timeline", str(out)]
        self.run([*case.arguments, *self.new_selection()], watched)

    def run(self, arguments: list[str], python: Sequence[str] = ()) -> float:
        """Run a command, with options of the interpreter; return its wall time."""
        begun = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *python, "-m", "thresher", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
        )
        spent = time.perf_counter() - begun
        if done.returncode:
            raise SystemExit(f"thresher {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
        return spent

    def first_answer(self, arguments: list[str]) -> float:
        """Start a server; return the time until its page arrives."""
        begun = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "thresher", *arguments, "--no-browser", "--json"],
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            text = ""
            while "}" not in text:
                line = process.stdout.readline()
                if not line:
                    raise SystemExit(f"thresher {' '.join(arguments)} ended without an address")
                text += line
            with urllib.request.urlopen(json.loads(text)["url"], timeout=30) as answer:
                answer.read()
            return time.perf_counter() - begun
        finally:
            process.terminate()
            process.wait()


def write_features(folder: Path, pack: Pack) -> None:
    """Write a folder of features as `thresher embed` does, of made numbers."""
    paths = FeaturePaths(folder)
    folder.mkdir(parents=True)
    array = features(len(pack.indices("train")), DIMENSION)
    np.save(paths.array, array)
    write_index(paths, pack, array)


def write_index(paths: FeaturePaths, pack: Pack, features: np.ndarray) -> None:
    """Write what says of which samples, the training ones of a pack, the features (n, d) are."""
    train = pack.indices("train")
    columns = {"id": pack.ids.take(pa.array(train)), "label": pack.labels[train]}
    pq.write_table(pa.table(columns), paths.index)
    meta = FeaturesMeta(
        format=FORMAT,
        pack=pack.name,
        fingerprint=pack.fingerprint,
        split="train",
        samples=len(train),
        dimension=features.shape[1],
        dtype=str(features.dtype),
    )
    write_json(paths.meta, meta.to_json())


def report(rows: list[Row], data: str, rounds: int, note: str) -> str:
    what = f"Medians of {rounds} runs, each in a process of its own, on {data}. {note}".strip()
    heads = ("command", "median s", "fastest s", "processor s", "limit s", "holds")
    cells = []
    for row in rows:
        times = [f"{seconds:.2f}" for seconds in (row.median_s, min(row.seconds), row.cpu_s)]
        holds = "yes" if row.holds else "no"
        cells.append((f"`{row.command}`", *times, f"{row.limit_s:g}", holds))
    return page("Start of commands", [what, "", *table(heads, cells)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--note", default="", help="a sentence on the state of the machine")
    parser.add_argument("--profile", action="store_true", help="needs --out")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options.data)
        if options.profile:
            for name, case in zip(("cold", "second"), bench.cases(), strict=False):
                bench.profile(case, Path(f"{options.out}-{name}.txt"))
        for case in bench.cases():
            rows.append(bench.measure(case, options.rounds))
            print(f"{rows[-1].median_s:6.2f} s  {case.name} (limit {case.limit_s:g} s)", flush=True)
    if options.out:
        content = {"machine": describe(), "data": options.data, "note": options.note}
        write_json(options.out.with_suffix(".json"), {**content, "rows": [asdict(r) for r in rows]})
        text = report(rows, options.data, options.rounds, options.note)
        write_text(options.out.with_suffix(".md"), text)


if __name__ == "__main__":
    main()
