"""The package structure: imports point one way, without cycles, and commands start quickly."""

import ast
import functools
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "thresher"

# A package may import itself and what stands before it. `select` and `training` are siblings, and
# so are `study` and `auditing`, `report` and `app`: neither imports the other.
LAYERS: list[set[str]] = [
    {"version"},
    {"errors", "startup", "stopping", "help_texts"},
    {"read_errors", "home_paths"},
    {
        "paths",
        "progress",
        "options",
        "plugins",
        "environment",
        "csv_table",
        "plain_optimizers",
        "foreign_data",
    },
    {"locks", "effect", "device_check"},
    {"distributed"},
    {"data"},
    {"models"},
    {"select", "training"},
    {"scaling"},
    {"study", "auditing"},
    {"report", "app"},
    {"lab"},
    {"recipes"},
    {"cli"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
ENTRY_POINTS = {"__init__", "__main__"}
"""The package root only re-exports, so it may name every layer; nothing imports it."""


def _layer(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _module(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = sorted(path for path in SOURCE.rglob("*.py") if _layer(path) not in ENTRY_POINTS)
MODULES = {_module(path): path for path in FILES}


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Return all statements, without their expressions, in which nothing is imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield node
            yield from _statements(node)


@functools.cache
def _imports(path: Path) -> list[tuple[int, str]]:
    """Return (line, module) for each import of a thresher module anywhere in the file."""
    names: list[tuple[int, str]] = []
    for node in _statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} uses a relative import"
            base = node.module or ""
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                names.append((node.lineno, inner if inner in MODULES else base))
    return [(line, name) for line, name in names if name.split(".")[0] == "thresher"]


def test_every_package_has_its_place() -> None:
    assert {_layer(path) for path in FILES} == set(RANK)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_to_the_left(path: Path) -> None:
    layer = _layer(path)
    for line, name in _imports(path):
        assert name != "thresher", f"{path}:{line} imports the package root"
        target = name.split(".")[1]
        assert target == layer or RANK[target] < RANK[layer], f"{path}:{line} imports {name}"


def test_no_module_imports_itself_through_others() -> None:
    """No cycles, also inside a package and also through imports inside functions."""
    graph = {name: {t for _, t in _imports(path) if t != name} for name, path in MODULES.items()}
    done: set[str] = set()
    cycles: list[list[str]] = []

    def visit(name: str, trail: list[str]) -> None:
        if name in trail:
            cycles.append([*trail[trail.index(name) :], name])
            return
        if name in done:
            return
        for target in sorted(graph.get(name, ())):
            visit(target, [*trail, name])
        done.add(name)

    for name in sorted(graph):
        visit(name, [])
    assert not cycles, "\n".join(" -> ".join(cycle) for cycle in cycles)


def _cpu_seconds(command: list[str]) -> float:
    """Return the CPU time of a command, which a busy machine does not change much."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@pytest.mark.fresh  # the CPU time of a fork is not that of a child
def test_help_answers_at_once_and_does_not_load_torch() -> None:
    command = [sys.executable, "-m", "thresher", "--help"]
    assert any(_cpu_seconds(command) < 0.5 for _ in range(5))
    command.insert(1, "-Ximporttime")
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "thresher.cli" in loaded
    for heavy in ("torch", "numpy", "pyarrow", "tyro", "rich"):
        assert f" {heavy}\n" not in loaded, f"thresher --help imports {heavy}"


LIBRARIES = {
    *("torch", "sklearn", "scipy", "matplotlib", "openTSNE", "starlette", "transformers"),
    "pandas",  # pyarrow would load it
    "pyarrow.compute",
}
"""Slow to import: a command that only reads files loads none of them."""
IN_PARTS = {"typeguard", "numpy.f2py.crackfortran", "numpy.testing._private.utils"}
"""Loaded by tyro for `X | None`, and by scipy because it names all parts of numpy."""


HELP = (
    *(f"{name} --help" for name in ("train", "embed", "plan", "view", "audit")),
    "select network --help",
    "study report --help",
)
COMMANDS: list[tuple[set[str], tuple[str, ...]]] = [
    (set(), HELP),
    (set(), ("data info digits --json", "study status STUDY --json")),
    ({"scipy"}, ("study report STUDY --json", "reproduce --json")),
]
"""What commands may load, and those that one process runs: what an earlier one loads is found."""
LOADED_BY = """
import sys
from thresher.cli.main import main
given, slow = sys.argv[2:], set(sys.argv[1].split())
for line in given:
    sys.argv = ["thresher", *line.split()]
    try: main()
    except SystemExit: pass
    print("loaded:", *sorted(slow & set(sys.modules)), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def loaded(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The slow libraries that are loaded after each command."""
    folder = tmp_path_factory.mktemp("study")
    study = 'seeds = 2\n[base]\ndata = "digits"\n[grid]\nbatch_size = [32, 64]\n'
    (folder / "study.toml").write_text(study)
    found: dict[str, set[str]] = {}
    for _, lines in COMMANDS:
        slow = LIBRARIES | (IN_PARTS if lines != HELP else set())
        given = [line.replace("STUDY", str(folder)) for line in lines]
        command = [sys.executable, "-c", LOADED_BY, " ".join(slow), *given]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        names = [x.split()[1:] for x in done.stderr.splitlines() if x.startswith("loaded:")]
        found |= dict(zip(lines, map(set, names), strict=True))
    return found


@pytest.mark.slow
@pytest.mark.xdist_group("loaded")
@pytest.mark.parametrize(
    ("arguments", "loads"), [(line, loads) for loads, lines in COMMANDS for line in lines]
)
def test_a_command_loads_only_what_it_needs(
    arguments: str, loads: set[str], loaded: dict[str, set[str]]
) -> None:
    assert loaded[arguments] <= loads


WITHOUT_COMPILER = """
import sys
from thresher.cli.main import main

def check(what, *unwanted):
    if loaded := set(unwanted) & set(sys.modules):
        sys.exit(f"{what} loads {loaded}")

for name in ("sgd", "adamw", "lars", "muon"):
    words = f"train --data digits --model tiny --epochs 0.05 --optimizer {name} --out"
    try: main([*words.split(), f"{sys.argv[1]}/{name}"])
    except SystemExit as ended: assert not ended.code
    assert "pyarrow" in sys.modules, "it would load pandas"
    check(name, "torch._dynamo", "sympy", "pandas._libs")

import numpy as np
import torch
from thresher.select.filters.label_errors import LabelErrorsFilter

features = np.random.default_rng(0).normal(size=(40, 3))
LabelErrorsFilter(engine="builtin").fit(features, np.arange(40) % 2)
check("looking for label errors", "torch._dynamo", "sklearn", "pandas")

from thresher.models.registry import build
from thresher.scaling.layers import time_layers
from thresher.scaling.synthetic import SyntheticBatch

batch = SyntheticBatch(batch_size=2, shape=(1, 8, 8), classes=10)
time_layers(build("tiny", 10, 1), batch, torch.device("cpu"), seconds_per_batch=0)
check("timing layers", "torch._dynamo")
"""


@pytest.mark.slow
def test_neither_label_errors_nor_timing_nor_training_load_torchs_compiler(
    digits: Path, tmp_path: Path
) -> None:
    """It takes as long as to import torch. One process: what an earlier part loads is found.

    Nor does the command for training load pandas.
    """
    command = [sys.executable, "-c", WITHOUT_COMPILER, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_worker_that_trains_does_not_load_pandas(digits: Path, tmp_path: Path) -> None:
    """A process of a group; pyarrow would load it."""
    config = {"data": "digits", "model": "tiny", "epochs": 0.05, "out": str(tmp_path / "worker")}
    (tmp_path / "order.json").write_text(json.dumps({"config": config, "quiet": True}))
    target = "thresher.training.train:train_in_worker"
    files = [str(tmp_path / name) for name in ("order.json", "answer.json")]
    command = [sys.executable, "-Ximporttime", "-m", "thresher.distributed.worker", target, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert " pyarrow\n" in done.stderr
    assert "pandas._libs" not in done.stderr


@pytest.mark.slow
def test_a_study_whose_workers_train_loads_neither_torch_nor_pandas(
    digits: Path, tmp_path: Path
) -> None:
    study = 'seeds = 1\n[base]\ndata = "digits"\nmodel = "tiny"\nepochs = 0.05\n'
    (tmp_path / "study.toml").write_text(f"{study}[executor]\nworkers = 1\n")
    words = ["study", "run", str(tmp_path / "study.toml"), "--out", str(tmp_path / "out")]
    code = (
        f"import sys; from thresher.cli.main import main; sys.argv = ['thresher', *{words!r}]\n"
        "try: main()\n"
        "except SystemExit as ended: assert not ended.code\n"
        "sys.exit(bool({'torch', 'pandas'} & set(sys.modules)))"
    )
    # The workers write what they import to the logs of their tasks.
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (log,) = (tmp_path / "out" / "logs").glob("*.log")
    assert " torch\n" in done.stderr + log.read_text()  # in the worker
    assert "pandas._libs" not in done.stderr + log.read_text()
    assert list((tmp_path / "out" / "trials").glob("*/result.json"))


MODULES_ALONE = ("training.config", "data.pack", "data.selection", "cli.commands")


@pytest.fixture(scope="module")
def loaded_by_modules() -> dict[str, str]:
    """Which of torch and numpy are loaded after each module, imported in this order."""
    code = (
        "import importlib, sys\n"
        "for module in sys.argv[1:]:\n"
        "    importlib.import_module(f'thresher.{module}')\n"
        "    print(*({'torch', 'numpy'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, *MODULES_ALONE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(zip(MODULES_ALONE, done.stdout.splitlines(), strict=True))


def test_the_training_options_load_without_numpy(loaded_by_modules: dict[str, str]) -> None:
    assert "numpy" not in loaded_by_modules["training.config"]


@pytest.mark.parametrize("module", MODULES_ALONE)
def test_configuration_and_data_load_without_torch(
    module: str, loaded_by_modules: dict[str, str]
) -> None:
    assert "torch" not in loaded_by_modules[module]
