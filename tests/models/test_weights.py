"""Weights from files: names as published, another head, and every refusal."""

import os
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from thresher.errors import ThresherError
from thresher.models import weights
from thresher.models.registry import build


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {key: value.clone() for key, value in build("tiny", 10).state_dict().items()}


def same(model: nn.Module, state: dict[str, torch.Tensor], but: tuple[str, ...] = ()) -> bool:
    mine = model.state_dict()
    return all(torch.equal(mine[key], state[key]) for key in state if key not in but)


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "pth"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "_orig_mod.module."])
def test_both_formats_load_with_or_without_a_wrappers_prefix(
    tmp_path: Path, state: dict[str, torch.Tensor], suffix: str, prefix: str
) -> None:
    file = tmp_path / f"w.{suffix}"
    named = {prefix + key: value for key, value in state.items()}
    save_file(named, file) if suffix == "safetensors" else torch.save(named, file)
    model = build("tiny", 10, weights=file)
    assert same(model, state)


def test_a_training_scripts_wrapping_is_taken_off(
    tmp_path: Path, state: dict[str, torch.Tensor]
) -> None:
    torch.save({"epoch": 3, "state_dict": state}, tmp_path / "w.pth")
    assert same(build("tiny", 10, weights=tmp_path / "w.pth"), state)


def test_old_files_without_batch_counts_load(
    tmp_path: Path, state: dict[str, torch.Tensor]
) -> None:
    old = {key: value for key, value in state.items() if "num_batches" not in key}
    torch.save(old, tmp_path / "w.pth")
    assert same(build("tiny", 10, weights=tmp_path / "w.pth"), old)


def test_another_number_of_classes_leaves_the_head_new(
    tmp_path: Path, state: dict[str, torch.Tensor]
) -> None:
    save_file(state, tmp_path / "w.safetensors")
    model = build("tiny", 4)
    before = model.get_parameter("fc.weight").clone()
    assert weights.load_into(model, tmp_path / "w.safetensors") == ["fc.weight", "fc.bias"]
    assert same(model, state, but=("fc.weight", "fc.bias"))
    assert torch.equal(model.get_parameter("fc.weight"), before)
    assert weights.load_into(build("tiny", 10), tmp_path / "w.safetensors") == []


def test_save_and_load_are_inverse(tmp_path: Path) -> None:
    torch.manual_seed(2)
    model = build("tiny", 10).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    weights.save(nn.DataParallel(model), tmp_path / "w.safetensors")
    assert set(load_file(tmp_path / "w.safetensors")) == set(model.state_dict())
    assert same(build("tiny", 10, weights=tmp_path / "w.safetensors"), model.state_dict())
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]


def refusal(name: str, file: Path, classes: int = 10, channels: int = 3) -> str:
    with pytest.raises(ThresherError) as caught:
        build(name, classes, channels, weights=file)
    return str(caught.value)


def test_wrong_shapes_are_refused_by_name(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    file = tmp_path / "w.safetensors"
    save_file(state, file)
    assert refusal("tiny", file, channels=1) == (
        f'tensor "conv1.weight" in {file} is 16×3×3×3, but tiny needs 16×1×3×3; '
        "choose the model that these weights were made for"
    )
    assert refusal("resnet20", file).startswith(
        f'{file} has no tensor "layer1.1.conv1.weight", which resnet20 needs'
    )
    save_file({**state, "extra": torch.zeros(2)}, file)
    assert f'tiny has no tensor "extra", which {file} has' in refusal("tiny", file)


def test_a_refused_file_leaves_the_model_as_it_was(
    tmp_path: Path, state: dict[str, torch.Tensor]
) -> None:
    model = build("tiny", 10)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    del state["fc.bias"]
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(ThresherError, match=r'no tensor "fc\.bias"'):
        weights.load_into(model, tmp_path / "w.safetensors")
    assert same(model, before)


def test_files_that_are_missing_cut_or_not_weights(
    tmp_path: Path, state: dict[str, torch.Tensor]
) -> None:
    assert "there are no weights at" in refusal("tiny", tmp_path / "none.safetensors")
    for suffix in ("safetensors", "pth"):
        file = tmp_path / f"cut.{suffix}"
        save_file(state, file) if suffix == "safetensors" else torch.save(state, file)
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        assert f"{file} is truncated or not a" in refusal("tiny", file)
    (tmp_path / "text.pth").write_text("hello")
    assert str(tmp_path / "text.pth") in refusal("tiny", tmp_path / "text.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    assert "has no state dict" in refusal("tiny", tmp_path / "list.pth")


def test_no_code_runs_from_a_file(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "module.pth")
    assert "is not a plain state dict" in refusal("tiny", tmp_path / "module.pth")


class Towers(nn.Module):
    """A layer of its own is called as the prefix that DDP adds to names."""

    def __init__(self) -> None:
        super().__init__()
        self.module, self.stem = nn.ModuleDict({"stem": nn.Linear(4, 4)}), nn.Linear(4, 4)


def test_a_layer_called_module_is_not_a_wrapper(tmp_path: Path) -> None:
    """Without its prefix it had the name of another layer, and one of the two was not loaded."""
    saved, loaded = Towers(), Towers()
    weights.save(saved, tmp_path / "w.safetensors")
    weights.load_into(loaded, tmp_path / "w.safetensors")
    assert same(loaded, saved.state_dict())


def spring(file: Path) -> None:
    file.write_text("code of the checkpoint ran")


class Trap:
    """An object that would write a file if it were loaded."""

    def __init__(self, file: Path, how: Callable[..., Any] = spring) -> None:
        self.file, self.how = file, how

    def __reduce__(self) -> tuple[Any, ...]:
        return self.how, (self.file,)


@pytest.mark.parametrize("prefix", ["model.", "net.", "backbone.encoder.", "model._orig_mod."])
def test_a_checkpoint_of_lightning_is_read_and_runs_no_code(
    tmp_path: Path, state: dict[str, torch.Tensor], prefix: str
) -> None:
    file, trapped = tmp_path / "last.ckpt", tmp_path / "trapped"
    settings = Namespace(
        lr=0.1, where=tmp_path, trap=Trap(trapped), kind=nn.Linear, more=OrderedDict(a=1)
    )
    torch.save(
        {
            "pytorch-lightning_version": "2.4.0",
            "state_dict": {
                **{prefix + key: t for key, t in state.items()},
                "loss.weight": torch.ones(3),
            },
            "optimizer_states": [{"state": {0: {"momentum_buffer": torch.ones(2)}}}],
            "hyper_parameters": settings,
            "callbacks": {"ModelCheckpoint": {"best": Trap(trapped), "dirpath": tmp_path}},
        },
        file,
    )
    assert same(build("tiny", 10, weights=file), state)
    assert not trapped.exists()
    torch.save({"state_dict": state, "hyper_parameters": Trap(trapped, os.mkdir)}, file)
    assert "is not a plain state dict" in refusal("tiny", file)  # torch blocks some modules
    named = file.rename(tmp_path / "last.pth")  # of other files every object is refused
    assert "is not a plain state dict" in refusal("tiny", named)
    assert not trapped.exists()


def test_a_network_in_a_module_may_lack_its_head(
    tmp_path: Path, state: dict[str, torch.Tensor]
) -> None:
    file = tmp_path / "w.safetensors"
    own = {key: t for key, t in state.items() if not key.startswith("fc.")}
    save_file({**{f"net.{key}": t for key, t in own.items()}, "fc.weight": torch.ones(9)}, file)
    assert same(build("tiny", 10, weights=file), own)


def test_names_that_fit_nothing_are_shown_with_those_that_are_needed(
    tmp_path: Path, state: dict[str, torch.Tensor]
) -> None:
    file = tmp_path / "w.ckpt"
    torch.save({"state_dict": {"fc.weight": torch.ones(2), "a.b": torch.ones(1)}}, file)
    needed = list(build("tiny", 10).state_dict())
    assert refusal("tiny", file) == (
        f'no tensor in {file} has a name that tiny needs: it needs "{needed[0]}", "{needed[1]}", '
        f'"{needed[2]}", 32 more, but the file has "fc.weight", "a.b"; '
        "choose the model that these weights were made for"
    )
    twice = {f"{prefix}.{key}": t for prefix in ("student", "teacher") for key, t in state.items()}
    torch.save({"state_dict": twice}, file)
    assert 'fit tiny, whose names begin with "student.", "teacher."; save' in refusal("tiny", file)
    torch.save({"state_dict": Namespace(a=1)}, file)
    assert "but the file has none" in refusal("tiny", file)
