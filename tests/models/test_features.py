"""Features as files: what embed writes, who may read it, and what comes from elsewhere."""

import json
import logging
import tracemalloc
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import nn

from thresher.data.pack import Pack
from thresher.errors import InvalidValueError, ThresherError
from thresher.models import weights
from thresher.models.embed import embed_pack
from thresher.models.embed_config import EmbedConfig
from thresher.models.feature_source import find_features
from thresher.models.features import Features
from thresher.models.registry import build
from thresher.training.optimizers import OptimizerConfig, parameter_groups

IDS = ["b", "a", "c"]
ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_an_array_with_its_ids_beside_it(tmp_path: Path) -> None:
    np.save(tmp_path / "f.npy", ROWS)
    with pytest.raises(ThresherError, match=r"have no ids; write them, one per line, to"):
        Features.open(tmp_path / "f.npy")
    (tmp_path / "f.ids.txt").write_text("\r\n".join(IDS) + "\r\n", encoding="utf-8-sig")
    features = Features.open(tmp_path / "f.npy")
    assert features.ids == IDS
    assert np.array_equal(features.array, ROWS)
    assert isinstance(features.array, np.memmap)
    assert features.labels is None
    assert features.probabilities is None
    assert Features.from_array(tmp_path / "f.npy", ["x", "y", "z"]).ids == ["x", "y", "z"]
    for ids in ("xyz", [1, 2, 3]):
        with pytest.raises(InvalidValueError, match="ids must be"):
            Features.from_array(tmp_path / "f.npy", ids)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["columns", "lists", "fixed lists"])
def test_parquet_in_its_usual_forms(tmp_path: Path, kind: str) -> None:
    columns: dict[str, object] = {"id": IDS, "label": [1, 0, 1]}
    if kind == "columns":
        columns |= {f"f{n}": ROWS[:, n] for n in range(4)}
        columns["__index_level_0__"] = [2, 0, 1]  # the row numbers of pandas are no feature
    else:
        size = 4 if kind == "fixed lists" else -1
        columns["embedding"] = pa.array(ROWS.tolist(), pa.list_(pa.float32(), size))
    pq.write_table(pa.table(columns), tmp_path / "f.parquet")
    features = Features.open(tmp_path / "f.parquet")
    assert features.ids == IDS
    assert features.labels is not None
    assert features.labels.tolist() == [1, 0, 1]
    assert np.array_equal(features.array, ROWS)


@pytest.mark.parametrize(
    "labels", [["0", "10", "9"], ["cat", "dog", "cat"], [1, None, 0], [1.0, 0.5, 0.0]]
)
def test_labels_that_are_no_numbers_are_refused(tmp_path: Path, labels: list[object]) -> None:
    pq.write_table(pa.table({"id": IDS, "label": labels, "x": ROWS[:, 0]}), tmp_path / "f.parquet")
    features = Features.open(tmp_path / "f.parquet")
    assert features.ids == IDS  # all that `select` needs
    with pytest.raises(InvalidValueError, match=r'column "label" of .* must hold the number'):
        _ = features.labels


@pytest.mark.parametrize("kind", ["columns", "lists", "fixed lists"])
def test_parquet_is_read_into_one_array(tmp_path: Path, kind: str) -> None:
    rows = np.random.default_rng(0).standard_normal((2000, 500), np.float32)
    columns: dict[str, object] = {"id": [str(n) for n in range(len(rows))]}
    if kind == "columns":
        columns |= {f"f{n}": rows[:, n] for n in range(500)}
    else:
        size = 500 if kind == "fixed lists" else -1
        columns["embedding"] = pa.array(list(rows), pa.list_(pa.float32(), size))
    pq.write_table(pa.table(columns), tmp_path / "f.parquet", row_group_size=300)
    ids = pq.read_table(tmp_path / "f.parquet", columns=["id"])["id"].to_pylist()
    tracemalloc.start()
    features = Features.open(tmp_path / "f.parquet")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert features.ids == ids
    np.testing.assert_array_equal(features.array, rows)
    assert most < 1.5 * rows.nbytes  # the memory of Arrow is not traced


def test_what_is_refused(tmp_path: Path) -> None:
    def says(path: Path) -> str:
        with pytest.raises(ThresherError) as caught:
            Features.open(path)
        return str(caught.value)

    assert "there is no folder of features at" in says(tmp_path / "none")
    assert "there are no features at" in says(tmp_path / "none.npy")
    assert "there are no features at" in says(tmp_path / "none.parquet")
    (tmp_path / "empty").mkdir()
    assert "there is no features.json in it" in says(tmp_path / "empty")
    (tmp_path / "empty" / "features.json").write_text(json.dumps({"format": 99}))
    assert "features of format 1" in says(tmp_path / "empty")
    np.save(tmp_path / "f.npy", ROWS)
    (tmp_path / "f.ids.txt").write_text("a\nb\n")
    assert "3 rows of features but 2 ids" in says(tmp_path / "f.npy")
    (tmp_path / "f.ids.txt").write_bytes(b"a\nb\xe9\nc\n")  # ended in a traceback
    assert "f.ids.txt is not UTF-8 text" in says(tmp_path / "f.npy")
    (tmp_path / "f.ids.txt").write_text("a\nb\na\n")
    assert "appear twice" in says(tmp_path / "f.npy")
    np.save(tmp_path / "f.npy", ROWS.astype(np.int64))
    assert "an array of int64" in says(tmp_path / "f.npy")
    (tmp_path / "f.npy").write_bytes(b"\x93NUMPY")
    assert "is not a complete .npy array" in says(tmp_path / "f.npy")
    (tmp_path / "f.parquet").write_bytes(b"PAR1")
    assert "is not a complete Parquet file" in says(tmp_path / "f.parquet")
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "f.parquet")
    assert 'has no column "id"' in says(tmp_path / "f.parquet")
    pq.write_table(pa.table({"id": ["a"]}), tmp_path / "f.parquet")
    assert "has 0 columns of lists" in says(tmp_path / "f.parquet")
    for lists in ([[1.0], [1.0, 2.0]], [[1.0], None]):
        pq.write_table(pa.table({"id": ["a", "b"], "x": lists}), tmp_path / "l.parquet")
        assert "are not numbers of one length" in says(tmp_path / "l.parquet")


def test_accuracy_is_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thresher.models.features._ROWS", 2)
    index = pa.table({"id": list("abcde"), "label": [0, 1, 2, 0, 1]})
    probabilities = np.eye(3, dtype=np.float32)[[0, 1, 1, 2, 1]]
    features = Features(np.zeros((5, 1), np.float32), index, probabilities)
    assert features.accuracy == 3 / 5
    assert replace(features, probabilities=None).accuracy is None


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "f.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    (tmp_path / "f.ids.txt").write_text("a\n")
    with pytest.raises(ThresherError, match="is not a complete"):
        Features.open(tmp_path / "f.npy")


class Transformer(nn.Module):
    """A vision transformer without a head: patches, a class token, blocks; pools by `pool`."""

    def __init__(self, pool: str = "mean", width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, 2)
        self.block = nn.TransformerEncoderLayer(width, 4, 64, batch_first=True, dropout=0)
        self.norm = nn.LayerNorm(width)
        if pool == "pooler":
            self.pooler = nn.Linear(width, width)
        self.pool = pool

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.norm(self.block(self.patches(x).flatten(2).transpose(1, 2)))
        if self.pool == "tokens":
            return tokens
        if self.pool == "pooler":
            return self.pooler(tokens[:, 0]).tanh()
        return tokens.mean(1)


def headless(classes: int, channels: int) -> nn.Module:
    torch.manual_seed(0)
    return Transformer().eval()


def test_a_headless_transformer_gives_its_pooled_output(caplog: pytest.LogCaptureFixture) -> None:
    model, x = Transformer().eval(), torch.randn(2, 1, 8, 8)
    with caplog.at_level(logging.INFO):
        source = find_features(model, x, classes=10)
    assert "Features of Transformer: its output" in caplog.text
    features, _ = source.run(model, x)
    assert features.shape == (2, 32)
    assert torch.equal(features, model(x))
    assert not source.is_head


def test_ambiguous_features_are_refused_with_the_choice() -> None:
    x = torch.randn(2, 1, 8, 8)
    model = Transformer("pooler").eval()
    choice = 'give `features_from`: "output", or the name of the layer'
    with pytest.raises(InvalidValueError, match=f'or the logits of layer "pooler".*{choice}'):
        find_features(model, x, classes=10)
    output = find_features(model, x, 10, "output")
    assert torch.equal(output.run(model, x)[0], model(x))
    layer = find_features(model, x, 10, "pooler")
    assert torch.equal(layer.run(model, x)[0].tanh(), model(x))
    with pytest.raises(InvalidValueError, match=r"its output is \(2, 16, 32\) for 2 images.*give"):
        find_features(Transformer("tokens").eval(), x, classes=10)
    with pytest.raises(InvalidValueError, match='has no layer "poller"; did you mean "pooler"'):
        find_features(model, x, 10, "poller")
    convolutional = nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(InvalidValueError, match="10 outputs of Sequential may be features or"):
        find_features(convolutional, x, classes=10)
    pooled = find_features(convolutional, x, 10, "0").run(convolutional, x)[0]
    torch.testing.assert_close(pooled, convolutional(x))


@pytest.mark.parametrize("last", ["out", "classifier"])
def test_a_hidden_layer_with_the_name_of_a_head_is_not_the_head(last: str) -> None:
    layers = {"flat": nn.Flatten(), "fc": nn.Linear(64, 16), last: nn.Linear(16, 10)}
    model, x = nn.Sequential(OrderedDict(layers)), torch.randn(2, 1, 8, 8)
    source = find_features(model, x, classes=10)
    assert (source.layer, source.is_head, source.width) == (last, True, 16)
    groups = parameter_groups(model, OptimizerConfig(head_lr=0.1))
    slow = [p for group in groups if group["lr_factor"] == 0.1 for p in group["params"]]
    assert [p.shape[0] for p in slow] == [10, 10]


def test_logits_of_a_convolution_are_not_features_also_with_linear_layers_inside() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.out = nn.Linear(1, 1), nn.Conv2d(1, 10, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(x * self.gate(x.mean((2, 3)))[:, :, None, None]).flatten(1)

    with pytest.raises(
        InvalidValueError, match="10 outputs of Gated may be features or the logits"
    ):
        find_features(Gated(), torch.randn(2, 1, 8, 8), classes=10)


@pytest.mark.parametrize("name", ["tiny", "fast-cifar", "alexnet-small", "resnet20"])
def test_built_in_networks_give_the_input_of_their_head(name: str) -> None:
    model, x = build(name, 10, 3).eval(), torch.randn(2, 3, 32, 32)
    source = find_features(model, x, classes=10)
    assert source.is_head
    assert source.run(model, x)[1].shape == (2, 10)


def test_a_headless_extractor_from_weights_to_features(tmp_path: Path, digits: Path) -> None:
    """Its own mean, std and image size, on a pack of raw images."""
    pack, model = Pack.open(digits), headless(10, 1)
    weights.save(model, tmp_path / "w.safetensors")
    config = EmbedConfig(
        model="test_features:headless",
        weights=tmp_path / "w.safetensors",
        image_size=16,
        mean=(0.2,),
        std=(0.4,),
        dtype="float32",
    )
    features = embed_pack(config, pack, tmp_path / "f")
    assert features.array.shape == (1437, 32)
    assert features.probabilities is None
    assert (features.meta.mean, features.meta.std, features.meta.image_size) == ((0.2,), (0.4,), 16)
    image = Image.fromarray(pack.images(pack.indices("train")[:1])[0, :, :, 0])
    larger = np.asarray(image.resize((16, 16), Image.Resampling.BILINEAR), np.float32)
    x = torch.from_numpy((larger / 255 - 0.2) / 0.4)[None, None]
    with torch.inference_mode():
        expected = model(x)[0].numpy()
    np.testing.assert_allclose(features.array[0], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(InvalidValueError, match=r"mean must have 1 values, one per channel"):
        embed_pack(replace(config, mean=(0.5, 0.5, 0.5)), pack, tmp_path / "g")
    with pytest.raises(InvalidValueError, match=r"std must be positive, got \(0.0,\)"):
        embed_pack(replace(config, std=(0.0,)), pack, tmp_path / "g")
    with pytest.raises(InvalidValueError, match="mean and std come from the run"):
        embed_pack(EmbedConfig(run=tmp_path, mean=(0.5,)), pack, tmp_path / "g")
    for own in (EmbedConfig(run=tmp_path, crop=4), EmbedConfig(run=tmp_path, image_size=4)):
        with pytest.raises(InvalidValueError, match="comes from the run"):
            embed_pack(own, pack, tmp_path / "g")


def test_weights_with_and_without_a_head_load(tmp_path: Path) -> None:
    full = build("tiny", 10, 1)
    state = weights.unwrapped(full)
    head = [key for key in state if key.startswith("fc.")]
    assert head
    weights.write({k: v for k, v in state.items() if k not in head}, tmp_path / "w.safetensors")
    torch.manual_seed(1)
    other = build("tiny", 10, 1)
    before = {key: weights.unwrapped(other)[key].clone() for key in head}
    assert weights.load_into(other, tmp_path / "w.safetensors") == head
    for key, tensor in weights.unwrapped(other).items():
        assert torch.equal(tensor, before[key] if key in head else state[key])
    weights.save(full, tmp_path / "full.safetensors")
    bare = build("tiny", 10, 1)
    bare.fc = nn.Identity()
    weights.load_into(bare, tmp_path / "full.safetensors")
    for key, tensor in weights.unwrapped(bare).items():
        assert torch.equal(tensor, state[key])


def test_features_do_not_come_from_a_head_that_was_not_loaded(tmp_path: Path, digits: Path) -> None:
    """It is random: the same command gave other features every time."""
    weights.save(build("tiny", 4, 1), tmp_path / "w.safetensors")
    config = EmbedConfig(model="tiny", weights=tmp_path / "w.safetensors", split="test")
    for layer in ("output", "fc"):
        with pytest.raises(InvalidValueError, match=r'no layer "fc" of this size.*would be random'):
            embed_pack(replace(config, features_from=layer), Pack.open(digits), tmp_path / "f")
    pack = Pack.open(digits)
    assert embed_pack(config, pack, tmp_path / "f").array.shape == (360, 64)


def test_an_index_that_another_program_sorted_is_refused(tmp_path: Path, digits: Path) -> None:
    """Its ids would name the features of other samples."""
    weights.save(build("tiny", 10, 1), tmp_path / "w.safetensors")
    config = EmbedConfig(model="tiny", weights=tmp_path / "w.safetensors", split="test")
    embed_pack(config, Pack.open(digits), tmp_path / "f")
    index = tmp_path / "f" / "index.parquet"
    pq.write_table(pq.read_table(index).sort_by([("id", "descending")]), index)
    with pytest.raises(InvalidValueError, match=r"not those of the features' rows, in their order"):
        Features.open(tmp_path / "f")
