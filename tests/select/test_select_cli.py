"""`thresher select …` as a person types it: the same file twice, honest refusals, exports."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from quick_tiny import _quick_tiny  # noqa: F401
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.data.sources.base import Block
from thresher.data.sources.digits import Digits
from thresher.data.write import write_pack
from thresher.errors import ThresherError

pytestmark = pytest.mark.xdist_group("select-cli")  # the tests share a run and its maps

Run = Callable[..., subprocess.CompletedProcess[str]]


class FewDigits(Digits):
    """The first 500: a map of them takes two seconds instead of nine."""

    name = "few-digits"

    def read(self, chunk: str) -> Iterator[Block]:
        for block in super().read(chunk):
            assert isinstance(block.images, np.ndarray)
            yield Block(block.ids[:500], block.labels[:500], block.splits[:500], block.images[:500])


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of 400 digits to train on and 100 to test."""
    return write_pack(FewDigits(), tmp_path_factory.mktemp("packs") / "few").root


@pytest.fixture(scope="module")
def run(thresher: Run, few: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network trained for two epochs on digits, with its dynamics."""
    out = tmp_path_factory.mktemp("runs") / "run"
    done = thresher(
        *("train", "--data", few, "--model", "tiny", "--epochs", 2, "--batch-size", 128),
        *("--lr", 0.1, "--record-dynamics", "--device", "cpu", "--validation", 100),
        *("--out", out),
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def pixels(few: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pixels as features from elsewhere: an array, and ids beside it, in another order."""
    pack = Pack.open(few)
    everyone = np.random.default_rng(0).permutation(len(pack))
    path = tmp_path_factory.mktemp("features") / "pixels.npy"
    np.save(path, pack.images(everyone).reshape(len(pack), -1).astype(np.float32))
    ids = [str(id) for id in pack.ids.take(everyone)]
    path.with_suffix(".ids.txt").write_text("\n".join(ids) + "\n")
    return path


@pytest.mark.slow  # trains, and two maps
def test_network_on_a_run_gives_the_same_file_twice(
    thresher: Run, few: Path, run: Path, tmp_path: Path
) -> None:
    outcomes = []
    for name in "ab":
        for kept in (run / "maps").glob("*"):  # of the first, or of another test
            kept.unlink()
        done = thresher(
            *("select", "network", "--data", few, "--run", run, "--drop", 0.05, "--json"),
            *("--iterations", 350, "--device", "cpu", "--out", tmp_path / f"{name}.parquet"),
        )
        assert done.returncode == 0, done.stderr
        outcomes.append(json.loads(done.stdout))
    a, b = outcomes
    for key in ("kept", "dropped", "dropped_share", "eps", "min_samples", "per_class", "kl"):
        assert a[key] == b[key]
        assert a[key] is not None
    assert a["seconds"]["total"] > 0
    assert abs(a["dropped_share"] - 0.05) <= 0.005
    assert a["kept"] + a["dropped"] == 400
    assert sum(row["dropped"] for row in a["per_class"].values()) == a["dropped"]
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    sidecars = [json.loads((tmp_path / f"{n}.json").read_text()) for n in "ab"]
    for sidecar in sidecars:
        assert sidecar.pop("seconds")["tsne"] > 0
    assert sidecars[0] == sidecars[1]
    assert sidecars[0]["network"] == "tiny"
    assert sidecars[0]["curve"]["share"][-1] == 0
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.column_names == ["id", "label", "x", "y", "cluster", "score", "keep", "reason"]
    pack = Pack.open(few)
    assert table.column("id").to_pylist() == pack.ids.take(pack.indices("train")).to_pylist()


@pytest.mark.slow  # trains, and a map
def test_another_eps_takes_the_kept_map(
    thresher: Run, few: Path, run: Path, tmp_path: Path
) -> None:
    common = (
        *("select", "network", "--data", few, "--run", run, "--iterations", 100),
        *("--device", "cpu", "--json"),
    )
    first = thresher(*common, "--out", tmp_path / "auto.parquet")
    again = thresher(*common, "--eps", 1.5, "--out", tmp_path / "eps.parquet")
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    assert "Using the cached map" in again.stderr
    assert set(json.loads(first.stdout)["eps"]) == {str(digit) for digit in range(10)}
    assert json.loads(again.stdout)["eps"] == 1.5


@pytest.mark.slow
def test_features_from_elsewhere_in_any_order(
    thresher: Run, few: Path, pixels: Path, tmp_path: Path
) -> None:
    out = tmp_path / "s.parquet"
    done = thresher(
        *("select", "network", "--data", few, "--features", pixels, "--reduce", "pca"),
        *("--drop", 0.02, "--out", out, "--export", tmp_path / "s.txt", tmp_path / "s.npy"),
    )
    assert done.returncode == 0, done.stderr
    assert "all" in done.stdout
    selection, pack = Selection.load(out), Pack.open(few)
    kept = selection.indices(pack)
    among_training = selection.indices(pack, within="train")
    np.testing.assert_array_equal(np.load(tmp_path / "s.npy"), among_training)
    assert (tmp_path / "s.txt").read_text().split() == pack.ids.take(kept).to_pylist()
    # The order of the file does not matter: rows go by id.
    from thresher.models.features import Features
    from thresher.select.run import training_inputs, with_features

    samples = with_features(training_inputs(pack), Features.open(pixels), pack)
    expected = pack.images(pack.indices("train")).reshape(400, -1)
    np.testing.assert_array_equal(samples.need_features(), expected)


@pytest.mark.slow  # six commands
def test_votes_and_combinations(thresher: Run, few: Path, pixels: Path, tmp_path: Path) -> None:
    s = tmp_path
    made = [
        thresher(
            *("select", "network", "--data", few, "--features", pixels, "--reduce", "pca"),
            *("--components", 10, "--drop", 0.05, "--votes", 1, "--also", pixels),
            *("--out", s / "n.parquet", "--json"),
        ),
        thresher("select", "random", "--data", few, "--drop", 0.05, "--out", s / "r.parquet"),
        thresher(
            *("select", "near-duplicates", "--data", few, "--features", pixels),
            *("--similarity", 0.98, "--out", s / "d.parquet"),
        ),
    ]
    assert [done.returncode for done in made] == [0, 0, 0], made
    votes = json.loads(made[0].stdout)["stability"]
    assert votes["votes"] == 2
    assert votes["jaccard"] == 1, "the same network twice"
    three = (s / "n.parquet", s / "r.parquet", s / "d.parquet")
    dropped = {}
    for rule in ("union", "intersection", "vote"):
        out = s / f"{rule}.parquet"
        done = thresher("select", rule, *three, "--data", few, "--out", out, "--json")
        assert done.returncode == 0, done.stderr
        dropped[rule] = set(np.flatnonzero(~Selection.load(out).keep))
        assert json.loads(done.stdout)["method"] == rule
    drops = [set(np.flatnonzero(~Selection.load(path).keep)) for path in three]
    assert dropped["union"] == drops[0] | drops[1] | drops[2]
    assert dropped["intersection"] == drops[0] & drops[1] & drops[2]
    assert dropped["vote"] == (drops[0] & drops[1]) | (drops[0] & drops[2]) | (drops[1] & drops[2])


@pytest.mark.slow  # trains, and two commands
def test_dynamics_of_a_run_never_drop_its_validation_samples(
    thresher: Run, few: Path, run: Path, tmp_path: Path
) -> None:
    seen = set(pq.read_table(run / "dynamics.parquet").column("id").to_pylist())
    assert len(seen) == 300
    for name in ("el2n", "forgetting"):
        out = tmp_path / f"{name}.parquet"
        done = thresher("select", name, "--data", few, "--run", run, "--out", out)
        assert done.returncode == 0, done.stderr
        assert "100 samples were seen too rarely" in done.stderr
        selection = Selection.load(out)
        assert selection.dropped == 20
        assert {selection.ids[row] for row in np.flatnonzero(~selection.keep)} <= seen


@pytest.mark.slow  # trains twice, and three maps
def test_recursive_retrains_and_goes_on(
    thresher: Run, few: Path, run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "again.parquet"
    command = (
        *("select", "recursive", "--data", few, "--run", run, "--drop", 0.06, "--rounds", 2),
        *("--perplexity", 10, "--iterations", 100, "--device", "cpu", "--out", out, "--json"),
    )
    done = thresher(*command)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["dropped"] == pytest.approx(24, abs=3)
    retrained = tmp_path / "again.rounds" / "round-1"
    result = retrained / "result.json"
    assert json.loads(result.read_text())["status"] == "finished"
    config = json.loads((retrained / "run.json").read_text())
    assert config["config"]["selection"].endswith("round-1.parquet")
    # Without the selection itself the command goes on with the round that is there.
    before = out.read_bytes()
    out.unlink()
    out.with_suffix(".json").unlink()
    stamp = result.stat().st_mtime_ns
    assert thresher(*command).returncode == 0
    assert out.read_bytes() == before
    assert result.stat().st_mtime_ns == stamp


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["network"], "features are required; give either --run or --features"),
        (["network", "--run", "nowhere"], "there is no run at nowhere; check the path"),
        (["network", "--features", "PIXELS", "--eps", "wide"], "wide"),
        (
            ["network", "--features", "PIXELS", "--eps", "1", "--drop", ".1"],
            "--eps and --drop exclude each other; give one of them",
        ),
        (
            ["network", "--features", "PIXELS", "--run", "PIXELS"],
            "--run and --features exclude each other; give one of them",
        ),
        (["random", "--drop", "1.5"], "--drop must be in [0, 1), got 1.5"),
        (["recursive", "--features", "PIXELS"], "--run is required"),
        (["union"], "--selections must name two or more, got 0"),
        (["el2n"], "--run is required: it holds the training dynamics"),
        (["el2n", "--run", "nowhere"], "there is no run at nowhere"),
    ],
)
def test_refusals_are_one_sentence_and_leave_nothing(
    thresher: Run,
    few: Path,
    pixels: Path,
    tmp_path: Path,
    arguments: list[str],
    sentence: str,
) -> None:
    words = [str(pixels) if word == "PIXELS" else word for word in arguments]
    done = thresher("select", *words, "--data", few, "--out", tmp_path / "s.parquet")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_taken_name_is_refused_before_the_work(thresher: Run, few: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.parquet"
    out.write_text("mine")
    done = thresher("select", "random", "--data", few, "--drop", 0.1, "--out", out)
    assert done.returncode == 2
    assert "exists already" in done.stderr
    assert out.read_text() == "mine"


def test_features_that_lack_samples_are_refused(few: Path, pixels: Path) -> None:
    from thresher.models.features import Features, FeaturesMeta
    from thresher.select.run import training_inputs, with_features

    pack = Pack.open(few)
    whole = Features.open(pixels)
    some = Features(whole.array[:200], whole.index.slice(0, 200))
    with pytest.raises(ThresherError, match=r"lack 2\d\d of 400 training samples"):
        with_features(training_inputs(pack), some, pack)
    other = Features(whole.array, whole.index, None, FeaturesMeta(fingerprint="0" * 32))
    with pytest.raises(ThresherError, match="fingerprint 00000000…"):
        with_features(training_inputs(pack), other, pack)


def test_a_selection_is_refused_on_another_pack_and_selects_datasets(few: Path) -> None:

    from thresher.select.filters.random import RandomFilter
    from thresher.select.run import run_filter

    pack = Pack.open(few)
    selection = run_filter(RandomFilter(drop=0.5), pack)
    selection.fingerprint = "f" * 32
    with pytest.raises(ThresherError, match="select on this pack"):
        selection.indices(pack)

    from datasets import Dataset
    from torch.utils.data import TensorDataset

    everyone = Dataset.from_dict({"row": list(range(400))})
    expected = np.flatnonzero(selection.keep).tolist()
    with pytest.raises(ThresherError, match="order of the data set cannot be verified"):
        selection.select(everyone)
    assert list(selection.select(everyone, order="pack")["row"]) == expected
    subset = selection.apply(TensorDataset(torch.arange(400)), order="pack")
    assert [int(subset[row][0]) for row in range(len(subset))] == expected
    with pytest.raises(ThresherError, match="399 samples, the selection 400"):
        selection.select(everyone.select(range(399)), order="pack")
