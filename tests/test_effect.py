"""Options without an effect are mentioned, and only they."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thresher import Study, TrainConfig, audit, train, write_pack
from thresher.auditing.config import AuditConfig
from thresher.cli.commands import COMMANDS
from thresher.cli.compare import Compare
from thresher.cli.main import main
from thresher.cli.select import config_class
from thresher.data.shard_writer import WriteOptions
from thresher.data.sources.digits import Digits
from thresher.effect import help_text, mention, names_shown, without_effect
from thresher.errors import NotFoundError
from thresher.options import Bounds, OptionInfo, describe, flag
from thresher.scaling.plan import PlanConfig
from thresher.select.filters.label_errors import LabelErrorsFilter
from thresher.select.filters.network import NetworkFilter
from thresher.study.definition import StudyDefinition
from thresher.study.preflight import option_remarks
from thresher.training.presets import preset

Options = dict[str, Any]


def _train(**options: Any) -> TrainConfig:
    return TrainConfig(data="digits", out="-", **options)


def _random(**options: Any) -> Any:
    return config_class("random")(data="digits", out=Path("S.parquet"), **options)


def _sentences(config: object, facts: Options | None = None) -> list[str]:
    return [sentence for sentence in without_effect(config, facts or {}).values() if sentence]


IDLE: list[tuple[object, Options, str]] = [
    (_train(step_epochs=(3.0,)), {}, "step_epochs has no effect with schedule cosine"),
    (_train(poly_power=1.0), {}, "poly_power has no effect with schedule cosine"),
    (_train(base_batch=32), {}, "base_batch has no effect with lr_rule none"),
    (_train(flip_mode="alternate", flip=False), {}, "flip_mode has no effect without flip"),
    (_train(flip_mode="alternate"), {"flip": False}, "flip_mode has no effect without flip"),
    (
        _train(padding_mode="reflect", crop_padding=0),
        {},
        "padding_mode has no effect without crop_padding",
    ),
    (_train(split_seed=1), {"validation": 0}, "split_seed has no effect without validation"),
    (_train(compress="int8"), {}, "compress has no effect with workers 1"),
    (_train(average_every=2), {}, "average_every has no effect with workers 1"),
    (
        _train(bucket_mb=1.0, workers=2, average_every=2),
        {},
        "bucket_mb has no effect with average_every 2",
    ),
    (_train(bucket_mb=1.0, workers=2, delay=1), {}, "bucket_mb has no effect with delay 1"),
    (NetworkFilter(perplexity=5, reduce="pca"), {}, "perplexity has no effect with reduce pca"),
    (NetworkFilter(components=5, reduce="none"), {}, "components has no effect with reduce none"),
    (
        NetworkFilter(perplexity=5, perplexities=(9.0, 30.0)),
        {},
        "perplexity has no effect with perplexities",
    ),
    (NetworkFilter(min_cluster_size=9), {}, "min_cluster_size has no effect with cluster dbscan"),
    (
        LabelErrorsFilter(folds=3, probabilities="own"),
        {},
        "folds has no effect with probabilities own",
    ),
    (_random(drop=0.2, like=Path("L")), {}, "drop has no effect with like"),
    (_random(positions="pack"), {}, "positions has no effect without export"),
    (AuditConfig(epochs=3, run=Path("RUN")), {}, "epochs has no effect with run"),
    (PlanConfig(pilot_batch=8, from_=Path("T")), {}, "pilot_batch has no effect with from_"),
    (PlanConfig(data="digits", epochs=9), {}, "epochs has no effect without target_accuracy"),
    (Compare(fusion_mb=(1.0,), engines=("ddp",)), {}, "fusion_mb has no effect with engines"),
    (Compare(hosts=2, engines=("ddp",)), {}, "engines has no effect with hosts 2"),
    (Compare(seeds=3), {}, "seeds has no effect without hosts"),
    (StudyDefinition(seeds=(0,), tune_seeds=2), {}, "tune_seeds has no effect without tune"),
]


@pytest.mark.parametrize(("config", "facts", "sentence"), IDLE, ids=[case[2] for case in IDLE])
def test_an_option_without_effect_is_mentioned(
    config: object, facts: Options, sentence: str
) -> None:
    assert _sentences(config, facts) == [sentence]


USED: list[tuple[object, Options]] = [
    (_train(), {"flip": False, "crop_padding": 0, "validation": 0, "workers": 1}),
    (_train(step_epochs=(3.0,), schedule="step"), {}),
    (_train(poly_power=1.0, schedule="poly"), {}),
    (_train(base_batch=32, lr_rule="linear"), {}),
    (_train(flip_mode="alternate"), {}),  # depends on the data
    (_train(flip_mode="alternate", flip=True), {"flip": True}),
    (_train(padding_mode="reflect"), {"crop_padding": 1}),
    (_train(split_seed=1), {}),
    (_train(split_seed=1, validation=0.1), {"validation": 143}),
    (_train(compress="int8", workers=2), {}),
    (_train(compress="int8"), {"workers": 2}),  # under torchrun
    (_train(bucket_mb=1.0, workers=2), {}),
    (NetworkFilter(reduce="pca"), {}),
    (NetworkFilter(perplexity=5, learning_rate=9.0, start="random"), {}),
    (NetworkFilter(perplexity=5, components=9, reduce="umap"), {}),
    (_random(drop=0.2, per_class=True), {}),
    (_random(positions="pack", export=(Path("K.npy"),)), {}),
    (AuditConfig(epochs=3, network="tiny"), {}),
    (PlanConfig(data="digits", epochs=9, target_accuracy=0.9), {}),
    (Compare(fusion_mb=(1.0,)), {}),
]


@pytest.mark.parametrize(("config", "facts"), USED)
def test_an_option_with_an_effect_is_not(config: object, facts: Options) -> None:
    assert _sentences(config, facts) == []


def test_what_belongs_to_the_model_is_not_set_by_the_user() -> None:
    config = TrainConfig.for_model("fast-cifar", data="digits", out="-", schedule="cosine")
    assert not any(without_effect(config, {"flip": False}, preset("fast-cifar")).values())


def test_every_condition_names_options_and_values_that_exist() -> None:
    declared: dict[tuple[type, str], set[str]] = {}
    for kind in [*(command.load()[0] for command in COMMANDS), StudyDefinition]:
        infos = {info.name: info for info in describe(kind)}
        for info in infos.values():
            # A base class may serve several commands, and not all have the other option.
            owner = next(c for c in reversed(kind.__mro__) if info.name in _own_fields(c))
            missing = declared.setdefault((owner, info.name), set(info.only_with))
            missing -= set(infos)
            for name in info.only_with.keys() & infos.keys():
                _check_values(info, infos[name])
    assert {key: missing for key, missing in declared.items() if missing} == {}
    assert sum(bool(info.only_with) for info in describe(TrainConfig)) >= 10


def _own_fields(kind: type) -> set[str]:
    """The options that a class itself declares."""
    return set(vars(kind).get("__annotations__", {})) if dataclasses.is_dataclass(kind) else set()


def _check_values(info: OptionInfo, other: OptionInfo) -> None:
    wanted = info.only_with[other.name]
    assert other.name != info.name
    if isinstance(wanted, Bounds):
        assert "int" in str(other.type) or "float" in str(other.type)
    elif isinstance(wanted, tuple):
        words = {word for word in wanted if isinstance(word, str)}
        assert words <= set(_words(other.type)), f"{info.name} is used with {words}"


def _words(hint: Any) -> list[Any]:
    inner = [word for part in getattr(hint, "__args__", ()) for word in _words(part)]
    return inner if hasattr(hint, "__args__") else [hint]


def test_names_are_flags_on_the_command_line(caplog: pytest.LogCaptureFixture) -> None:
    config = _train(step_epochs=(3.0,))
    mention(config)
    with names_shown(flag):
        mention(config)
    with names_shown(None):
        mention(config)
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, "step_epochs has no effect with schedule cosine"),
        (logging.WARNING, "--step-epochs has no effect with --schedule cosine"),
    ]


def test_help_says_with_what_an_option_has_an_effect_unless_it_does_already() -> None:
    infos = {info.name: info for info in describe(TrainConfig)}
    assert help_text(infos["step_epochs"], infos) == infos["step_epochs"].help
    assert help_text(infos["compress"], infos) == infos["compress"].help
    added = {
        "flip_mode": "Only with `flip`.",
        "base_batch": "Only with `lr_rule` linear or sqrt or legw.",
        "engine": "Only with `workers` greater than 1.",
        "bucket_mb": "Only with `workers` greater than 1 and with `average_every` 1 and without "
        "`delay`.",
    }
    for name, text in added.items():
        assert help_text(infos[name], infos) == f"{infos[name].help} {text}"
    per_class = next(i for i in describe(config_class("random")) if i.name == "per_class")
    assert help_text(per_class, ["like"]).endswith("Only without `like`.")
    assert help_text(per_class, []) == per_class.help  # of a filter without `like`


def test_training_knows_the_data_and_mentions_an_option_once(
    digits: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: Options = {"data": "digits", "epochs": 0.05, "flip_mode": "alternate", "split_seed": 1}
    train(TrainConfig(**options, out=str(tmp_path / "quiet")), quiet=True)
    assert "no effect" not in caplog.text
    train(TrainConfig(**options, out=str(tmp_path / "run")))
    assert _mentioned(caplog) == [
        "split_seed has no effect without validation",
        "flip_mode has no effect without flip",
    ]


def test_commands_name_flags(
    digits: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = f"train --data digits --epochs 0.05 --poly-power 3 --out {tmp_path / 'run'}"
    with pytest.raises(SystemExit, match="0"):
        main(words.split())
    with pytest.raises(SystemExit, match="0"):
        main(f"select random --data digits --positions pack --out {tmp_path}/S.parquet".split())
    assert _mentioned(caplog) == [
        "--poly-power has no effect with --schedule cosine",
        "--positions has no effect without --export",
    ]


def test_packing_and_audits_mention_options_in_python(
    digits: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_pack(Digits(), tmp_path / "pack", WriteOptions(seed=3, processes=1))
    with pytest.raises(NotFoundError):
        audit("digits", tmp_path / "audit", AuditConfig(run=tmp_path / "no-run", epochs=2))
    assert _mentioned(caplog) == [
        "seed has no effect without test",
        "epochs has no effect with run",
    ]


def test_a_filter_mentions_an_option_once_and_not_for_each_vote(
    caplog: pytest.LogCaptureFixture,
) -> None:
    features = np.random.default_rng(0).normal(size=(40, 4))
    options: Options = {"perplexity": 9.0, "perplexities": (3.0, 5.0), "iterations": 20}
    NetworkFilter(**options).fit(features, np.arange(40) % 2)
    assert _mentioned(caplog) == ["perplexity has no effect with perplexities"]


@pytest.mark.parametrize(
    ("base", "grid", "remarks"),
    [
        ({"step_epochs": [1.0]}, {"schedule": ["step", "cosine"]}, []),
        (
            {"step_epochs": [1.0]},
            {"schedule": ["poly", "cosine"]},
            [
                "step_epochs has no effect with schedule poly.",
                "step_epochs has no effect with schedule cosine.",
            ],
        ),
        ({}, {"step_epochs": [[1.0], [2.0]]}, ["step_epochs has no effect with schedule cosine."]),
        ({"compress": "int8"}, {"workers": [1, 2]}, []),
    ],
)
def test_a_study_mentions_an_option_that_no_trial_uses(
    base: Options, grid: Options, remarks: list[str], tmp_path: Path
) -> None:
    content = {"seeds": 2, "base": {"data": "digits", **base}, "grid": grid}
    assert option_remarks(Study.from_dict(content, tmp_path).plan()) == remarks


def test_trials_of_a_study_do_not_repeat_it(
    digits: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base = {"data": "digits", "epochs": 0.05, "poly_power": 3.0}
    content = {"seeds": 2, "tune_seeds": 1, "base": base}
    Study.from_dict(content, tmp_path / "study").run(executor="in-process")
    assert _mentioned(caplog) == [
        "tune_seeds has no effect without tune.",
        "poly_power has no effect with schedule cosine.",
    ]


def _mentioned(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if "no effect" in message]
