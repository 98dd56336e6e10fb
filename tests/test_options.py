"""Options declared once: description, validation, conversion; messages word for word."""

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from thresher.errors import InvalidValueError
from thresher.options import (
    Bounds,
    changes_result,
    describe,
    flag,
    from_mapping,
    option,
    to_mapping,
    validate,
)
from thresher.paths import as_path
from thresher.study.reading import from_dict


@dataclass(frozen=True, kw_only=True)
class Base:
    data: Path
    """Folder of the pack."""
    seed: int = option(0, ge=0)
    """Seed of every random choice."""


@dataclass(frozen=True, kw_only=True)
class Config(Base):
    momentum: float = option(0.9, ge=0, lt=1)
    """Momentum of SGD.

    Nesterov's too.
    """
    schedule: Literal["cosine", "step"] = "cosine"
    micro_batch: int | Literal["auto"] | None = option(None, ge=1)
    step_epochs: tuple[float, ...] = option((), gt=0)
    size: tuple[int, str] = (1, "px")
    flip: bool = option(False, changes_result=False)
    note: str = ""
    warm: float | None = option(None, gt=0)
    table: dict[int, float] = dataclasses.field(default_factory=dict)
    cache: Path | Literal["none"] | None = None


def _config(**values: Any) -> Config:
    return Config(**{"data": Path("d"), **values})


def test_describe_gives_names_types_defaults_help_and_bounds() -> None:
    infos = {info.name: info for info in describe(Config)}
    assert list(infos)[:3] == ["data", "seed", "momentum"]
    assert infos["data"].default is dataclasses.MISSING
    assert infos["data"].help == "Folder of the pack."
    assert infos["momentum"].help == "Momentum of SGD.\n\nNesterov's too."
    assert infos["momentum"].bounds == Bounds(ge=0, lt=1)
    assert infos["schedule"].choices == ("cosine", "step")
    assert infos["micro_batch"].choices == ("auto",)
    assert infos["note"].help == ""
    assert infos["step_epochs"].flag == flag("step_epochs") == "--step-epochs"
    assert changes_result(Config) == set(infos) - {"flip"}


def test_a_class_made_at_run_time_has_no_help_texts() -> None:
    made = dataclasses.make_dataclass("Made", [("rate", float, option(0.1, gt=0))])
    (info,) = describe(made)
    assert (info.name, info.help, info.bounds.gt) == ("rate", "", 0)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"momentum": 0},
        {"micro_batch": "auto"},
        {"micro_batch": 4},
        {"step_epochs": (1.0, 2, np.float32(3))},
        {"seed": np.int64(7)},
        {"table": {8: 0.5}},
        {"cache": "none"},
        {"cache": Path("c")},
        {"seed": 2**63 - 1},
    ],
    ids=str,
)
def test_good_values_pass(values: dict[str, Any]) -> None:
    validate(_config(**values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"momentum": 1.0}, "momentum must be in [0, 1), got 1.0"),
        ({"momentum": -0.1}, "momentum must be in [0, 1), got -0.1"),
        ({"momentum": math.nan}, "momentum must be in [0, 1), got nan"),
        ({"momentum": "0.9"}, "momentum must be a number, got '0.9'"),
        ({"momentum": True}, "momentum must be a number, got True"),
        ({"momentum": None}, "momentum must be a number, got None"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"seed": 1.0}, "seed must be an integer, got 1.0"),
        ({"seed": 2**63}, f"seed must be at most {2**63 - 1}, got {2**63}"),
        ({"seed": -(2**70)}, f"seed must be at least 0, got {-(2**70)}"),
        ({"seed": 10**5000}, f"seed must be at most {2**63 - 1}, got a huge integer"),
        ({"warm": math.inf}, "warm must be finite, got inf"),
        ({"warm": 0.0}, "warm must be greater than 0, got 0.0"),
        ({"schedule": "cosin"}, 'schedule cannot be "cosin"; did you mean "cosine"?'),
        ({"schedule": 1}, 'schedule must be one of "cosine", "step", got 1'),
        ({"micro_batch": "all"}, "micro_batch must be an integer or \"auto\", got 'all'"),
        ({"micro_batch": 0}, "micro_batch must be at least 1, got 0"),
        ({"step_epochs": (1.0, 0.0)}, "step_epochs[1] must be greater than 0, got 0.0"),
        ({"step_epochs": 3.0}, "step_epochs must be a list, got 3.0"),
        ({"step_epochs": [3.0]}, "step_epochs must be a tuple, got [3.0]"),
        (
            {"step_epochs": np.eye(2)},
            "step_epochs must be a tuple, got array([[1., 0.], [0., 1.]])",
        ),
        ({"step_epochs": ("x",)}, "step_epochs[0] must be a number, got 'x'"),
        ({"size": (1, "px", 2)}, "size must have 2 values, got 3"),
        ({"size": ("px", 1)}, "size[0] must be an integer, got 'px'"),
        ({"flip": 1}, "flip must be true or false, got 1"),
        ({"note": 3}, "note must be text, got 3"),
        ({"data": "d"}, "data must be a path, got 'd'"),
        ({"table": {"a": 1.0}}, "table must be an integer, got 'a'"),
        ({"table": {8: math.inf}}, "table.8 must be finite, got inf"),
        ({"note": list(range(99))}, f"note must be text, got {str(list(range(99)))[:77]}..."),
    ],
)
def test_bad_values_are_named_with_what_is_wrong(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        validate(_config(**values))
    assert str(caught.value) == message
    assert caught.value.parameter == next(iter(values))
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (Bounds(), "finite"),
        (Bounds(ge=1), "at least 1"),
        (Bounds(gt=0.0), "greater than 0"),
        (Bounds(le=1_234_567), "at most 1234567"),
        (Bounds(lt=2.5), "less than 2.5"),
        (Bounds(gt=0, le=1), "in (0, 1]"),
        (Bounds(ge=1e-5, lt=2**62), f"in [1e-05, {2**62})"),
    ],
    ids=str,
)
def test_bounds_in_words(bounds: Bounds, words: str) -> None:
    assert str(bounds) == words


def test_values_of_json_and_toml_are_converted() -> None:
    values = {
        "data": "packs/digits",
        "momentum": 0,
        "step_epochs": [1, 2.5],
        "size": [3, "cm"],
        "table": {"8": 1},
        "cache": "none",
        "micro_batch": 7,
    }
    config = from_mapping(Config, values)
    assert config == Config(
        data=Path("packs/digits"),
        momentum=0.0,
        step_epochs=(1.0, 2.5),
        size=(3, "cm"),
        table={8: 1.0},
        cache="none",
        micro_batch=7,
    )
    assert type(config.momentum) is type(config.step_epochs[0]) is type(config.table[8]) is float
    assert from_mapping(Config, {**values, "cache": "c"}).cache == Path("c")


def test_what_is_written_is_read_back() -> None:
    config = _config(seed=np.int64(3), table={8: np.float32(0.5)}, cache=Path("c"), size=(2, "x"))
    text = json.dumps(to_mapping(config))
    assert from_mapping(Config, json.loads(text)) == config


@pytest.mark.parametrize(
    ("values", "where", "message"),
    [
        ({}, "", "data is required"),
        ({"data": "d", "sed": 1}, "", 'unknown option "sed"; did you mean "seed"?'),
        ({"data": "d", "seed": -1}, "", "seed must be at least 0, got -1"),
        ({"data": "d", "seed": 2**63}, "", f"seed must be at most {2**63 - 1}, got {2**63}"),
        ({"data": "d", "seed": -1}, "a.toml", "seed must be at least 0, got -1 (in a.toml)"),
        ({}, "[base]", "data is required (in [base])"),
        ([1], "", "expected a table of options, got [1]"),
        ({"data": "d", "size": [1]}, "", "size must have 2 values, got 1"),
        ({"data": "d", "size": [1, "a", 3]}, "", "size must have 2 values, got 3"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_mappings_are_refused(values: Any, where: str, message: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        from_mapping(Config, values, where)
    assert str(caught.value) == message


@dataclass(frozen=True)
class Point:
    bytes: float = option(gt=0)
    seconds: float = option(gt=0)


@dataclass(frozen=True)
class Profile:
    best: Point | None = None
    points: tuple[Point, ...] = ()


def test_tables_become_dataclasses_and_back() -> None:
    values = {"best": {"bytes": 1, "seconds": 2}, "points": [{"bytes": 3, "seconds": 4}]}
    profile = from_mapping(Profile, values)
    assert profile == Profile(Point(1.0, 2.0), (Point(3.0, 4.0),))
    assert to_mapping(profile) == values
    assert to_mapping(Profile()) == {"best": None, "points": []}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"points": [{"bytes": 1, "seconds": 1}, {"bytes": 1, "seconds": 0}]},
            "points[1].seconds must be greater than 0, got 0.0",
        ),
        ({"points": [{"bytes": 1}]}, "points[0].seconds is required"),
        ({"best": {"byte": 1}}, 'unknown option "best.byte"; did you mean "bytes"?'),
        ({"best": 3}, "best must be a table, got 3"),
        ({"points": [3]}, "points[0] must be a table, got 3"),
        ({"points": [None]}, "points[0] must be a table, got None"),
    ],
    ids=str,
)
def test_errors_in_tables_name_the_path(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        from_mapping(Profile, values)
    assert str(caught.value) == message


def test_the_lines_of_a_help_text_are_joined() -> None:
    @dataclass
    class Long:
        seed: int = 0
        """The seed of
        everything.

        Another paragraph."""

    assert describe(Long)[0].help == "The seed of everything.\n\nAnother paragraph."


@dataclass(frozen=True, kw_only=True)
class _Paths:
    data: str = ""
    out: Path | None = None
    also: tuple[Path, ...] = ()
    text: str = ""


def test_home_folders_are_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a file of options, in Python, and in the parameters of functions; a name with ~ is one."""
    monkeypatch.setenv("HOME", str(tmp_path))
    values = {"data": "~/pack", "out": "~/run", "also": ["~/a", "b"], "text": "~nobody"}
    built = _Paths(data="~/pack", out=Path("~/run"), also=(Path("~/a"), Path("b")), text="~nobody")
    validate(built)
    expected = {"data": f"{tmp_path}/pack", "out": tmp_path / "run", "text": "~nobody"}
    for config in (built, from_mapping(_Paths, values)):
        assert vars(config) == {**expected, "also": (tmp_path / "a", Path("b"))}
    assert as_path("~/pack", "data") == tmp_path / "pack"
    content = {"base": {"data": "~/pack", "epochs": 1}, "grid": {"selection": ["~/a.parquet"]}}
    study = from_dict(content)
    assert study.base["data"] == f"{tmp_path}/pack"
    assert study.grid["selection"] == [f"{tmp_path}/a.parquet"]
