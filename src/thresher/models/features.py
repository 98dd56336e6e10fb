"""Penultimate features: the file that `embed` writes and `select` reads, and how to get them.

A folder: `features.npy` (n, d) float16 or float32 and `probabilities.npy` (n, classes) float32,
both memory-mapped on reading; `index.parquet` with `id` and `label`; `features.json` says on which
pack and by which network. No torch here unless features are computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from thresher.data.digest import file_sha256
from thresher.errors import ThresherError
from thresher.paths import RunPaths, read_json

if TYPE_CHECKING:
    from torch import Tensor, nn

    from thresher.data.pack import Pack

FORMAT = 1
_FIXED_LIST = pa.list_(pa.float32(), 1).id


@dataclass(frozen=True)
class FeaturePaths:
    """The file names of a features folder, and of one that is still being written."""

    root: Path

    @property
    def array(self) -> Path:
        return self.root / "features.npy"

    @property
    def probabilities(self) -> Path:
        return self.root / "probabilities.npy"

    @property
    def index(self) -> Path:
        return self.root / "index.parquet"

    @property
    def meta(self) -> Path:
        return self.root / "features.json"

    @property
    def staging(self) -> "FeaturePaths":
        """Where features grow until they are whole; nothing opens it."""
        return FeaturePaths(self.root.with_name(f".{self.root.name}.partial"))


@dataclass(frozen=True)
class Features:
    """Features of n samples, one row each, in the order of `ids`."""

    array: np.ndarray
    """(n, d) float16 or float32, often a read-only memory map."""
    index: pa.Table
    """Columns `id` and, where known, `label`."""
    probabilities: np.ndarray | None = None
    """(n, classes) float32; None where the network has no head for these classes."""
    meta: dict[str, Any] = field(default_factory=dict)
    """`fingerprint` of the pack, `model`, `run`, `split`, `dtype`, `versions`, …"""

    def __len__(self) -> int:
        return len(self.array)

    @cached_property
    def ids(self) -> list[str]:
        return self.index.column("id").to_pylist()

    @cached_property
    def labels(self) -> np.ndarray | None:
        """(n,) int64, or None where the file holds none."""
        if "label" not in self.index.column_names:
            return None
        return self.index.column("label").to_numpy().astype(np.int64)

    @classmethod
    def open(cls, path: str | Path) -> "Features":
        """Open a folder that `thresher embed` wrote, or a `.npy` or `.parquet` from elsewhere."""
        path = Path(path)
        if path.suffix in (".npy", ".parquet"):
            return cls.from_array(path)
        paths = FeaturePaths(path)
        if path.exists() and not paths.meta.exists():
            raise ThresherError(
                f"{path} holds no features: there is no features.json in it",
                "make them with `thresher embed`",
            )
        meta = read_json(paths.meta, "folder of features")
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise ThresherError(f"{path} does not hold features of format {FORMAT}", "embed again")
        probabilities = _map(paths.probabilities) if paths.probabilities.exists() else None
        features = cls(_map(paths.array), _table(paths.index), probabilities, meta)
        return features._checked(path)

    @classmethod
    def from_array(cls, path: str | Path, ids: Sequence[str] | None = None) -> "Features":
        """Features computed elsewhere.

        `X.npy` is (n, d), with `ids` given here or in `X.ids.txt`, one a line. `X.parquet` has a
        column `id`, maybe `label`, and either one column of lists or a number column per feature.
        """
        path = Path(path)
        if path.suffix == ".parquet":
            return _from_parquet(path)._checked(path)
        if ids is None:
            beside = path.with_suffix(".ids.txt")
            if path.exists() and not beside.exists():
                raise ThresherError(
                    f"the features in {path} have no ids", f"put them, one a line, into {beside}"
                )
            ids = beside.read_text(encoding="utf-8").splitlines() if path.exists() else []
        index = pa.table({"id": pa.array(list(ids), pa.string())})
        return cls(_map(path), index, None, {"source": str(path)})._checked(path)

    def _checked(self, path: Path) -> "Features":
        if self.array.ndim != 2 or self.array.dtype.kind != "f":
            raise ThresherError(
                f"{path} holds an array of {self.array.dtype} with the shape {self.array.shape}",
                "features are floats, one row per sample",
            )
        if len(self.index) != len(self.array):
            raise ThresherError(
                f"{path} has {len(self.array):,} rows of features but {len(self.index):,} ids",
                "there must be one id per row",
            )
        if len(set(self.ids)) != len(self.ids):
            raise ThresherError(f"some ids in {path} appear twice", "ids must be unique")
        return self


def of_run(run: str | Path, pack: "Pack", split: str = "train") -> tuple[Features, Path]:
    """A run's features of a pack and where they lie: in the run's folder, made if missing."""
    weights = RunPaths(Path(run)).model
    path = Path(run) / f"features-{split}-{pack.fingerprint[:12]}"
    if not path.exists():
        # Here, not at the top: it loads torch, which reading features does not need.
        from thresher.models.embed import EmbedOptions, Network, embed

        embed(Network.from_run(run, pack), pack, path, EmbedOptions(split, "float32"))
    features = Features.open(path)
    if weights.exists() and features.meta.get("sha256") != file_sha256(weights):
        raise ThresherError(
            f"the features in {path} are of other weights than the run has now",
            "remove that folder",
        )
    return features, path


def penultimate(model: "nn.Module", x: "Tensor") -> "Tensor":
    """What goes into the model's head, (n, d), for images (n, channels, height, width)."""
    return features_and_logits(model, x)[0]


def features_and_logits(model: "nn.Module", x: "Tensor") -> "tuple[Tensor, Tensor]":
    """One pass of any model: (n, d) input of its last linear layer, and its (n, classes) output."""
    from thresher.models.head import find_head

    found = find_head(model)
    if found is None:
        raise ThresherError(
            f"{type(model).__name__} has no linear layer, so it has no penultimate features",
            "give a classifier that ends in torch.nn.Linear",
        )
    seen: list[Tensor] = []
    hook = found[1].register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    try:
        logits = model(x)
    finally:
        hook.remove()
    if len(seen) != 1 or len(seen[0]) != len(x):
        raise ThresherError(
            f'the last linear layer of {type(model).__name__} ("{found[0]}") is not its head',
            "register the head last",
        )
    return seen[0].flatten(1), logits


def _map(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise ThresherError(f"there are no features at {path}", "check the path") from None
    except (ValueError, OSError, EOFError) as error:
        raise ThresherError(
            f"{path} is not a whole .npy array ({error})", "make it again"
        ) from None


def _table(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except FileNotFoundError:
        raise ThresherError(f"there are no features at {path}", "check the path") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise ThresherError(
            f"{path} is not a whole Parquet file ({error})", "make it again"
        ) from None


def _from_parquet(path: Path) -> Features:
    table = _table(path)
    if "id" not in table.column_names:
        raise ThresherError(f'{path} has no column "id"', "name the samples by their ids")
    index = table.select([name for name in ("id", "label") if name in table.column_names])
    index = index.set_column(0, "id", index.column("id").cast(pa.string()))
    columns = [name for name in table.column_names if name not in ("id", "label")]
    lists = [name for name in columns if _is_list(table.schema.field(name).type)]
    if len(lists) == 1:
        array = np.array(table.column(lists[0]).to_pylist(), dtype=np.float32)
    elif columns and not lists:
        try:
            array = np.stack(
                [table.column(name).to_numpy().astype(np.float32) for name in columns], axis=1
            )
        except (ValueError, TypeError):
            raise ThresherError(f"not all feature columns of {path} hold numbers") from None
    else:
        raise ThresherError(
            f"{path} has {len(lists)} columns of lists",
            "give features as one column of lists, or as a number column each",
        )
    return Features(array, index, None, {"source": str(path)})


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or kind.id == _FIXED_LIST
