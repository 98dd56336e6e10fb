"""Expansion of a study: every combination once, stable names, steps before their trials."""

from pathlib import Path
from typing import Any

import pytest

from thresher.errors import ThresherError
from thresher.study import reading
from thresher.study.expand import LONGEST_NAME, expand
from thresher.study.study import Study
from thresher.study.tasks import StudyPlan

STEPS: dict[str, Any] = {
    "extractor": {"do": "train", "epochs": 2, "model": "resnet20"},
    "features": {"do": "embed", "run": "extractor"},
    "network": {"do": "select", "filter": "network", "features": "features", "drop": 0.1},
    "random": {"do": "select", "filter": "random", "like": "network", "each": ["seed"]},
}


def plan(root: Path = Path("study"), **content: Any) -> StudyPlan:
    base = {
        "base": {"data": "digits", "epochs": 1},
        "grid": {"batch_size": [32, 64], "selection": ["full", "random", "network"]},
        "steps": STEPS,
        "seeds": 2,
    }
    return expand(reading.from_dict({**base, **content}), root)


def test_every_combination_once() -> None:
    found = plan()
    assert len(found.trials) == 2 * 3 * 2
    combinations = {(t.cell["batch_size"], t.cell["selection"], t.seed) for t in trials(found)}
    assert len(combinations) == 12
    assert {step.split(",")[0] for step in found.steps} == set(STEPS)


def trials(found: StudyPlan) -> list[Any]:
    return list(found.trials.values())


def test_a_step_is_made_once_unless_it_is_made_for_each() -> None:
    found = plan()
    names = [name.split(",")[0] for name in found.steps]
    assert names.count("network") == names.count("extractor") == 1
    assert names.count("random") == 2  # one per seed
    for trial in trials(found):
        if trial.cell["selection"] == "random":
            (need,) = trial.needs
            assert f"seed={trial.seed}" in need
            assert found.steps[need].settings["seed"] == trial.seed
            assert trial.settings["selection"] == str(found.steps[need].out)
        if trial.cell["selection"] == "full":
            assert trial.needs == ()
            assert "selection" not in trial.settings


def test_a_control_is_drawn_for_every_seed_unless_the_study_says_otherwise() -> None:
    control = {"do": "select", "filter": "random", "like": "network"}

    def draws(**changes: Any) -> list[Any]:
        steps = {**STEPS, "random": control, **changes}
        return [step.at for step in plan(steps=steps).steps.values() if step.step == "random"]

    assert draws() == [{"seed": 0}, {"seed": 1}]
    assert draws(random={**control, "each": []}) == [{}]
    assert draws(random={**control, "seed": 7}) == [{}]
    # The axes of the selection that it matches are its own.
    per_batch = {name: {**STEPS[name], "each": ["batch_size"]} for name in ("features", "network")}
    per_batch["extractor"] = {**STEPS["extractor"], "each": ["batch_size"]}
    assert draws(**per_batch) == [{"seed": s, "batch_size": b} for b in (32, 64) for s in (0, 1)]


def test_seeds_take_turns_with_the_draws_of_a_step() -> None:
    own = {"each": ["seed"], "draws": 2}
    steps = {name: {**STEPS[name], **own} for name in ("extractor", "features", "network")}
    found = plan(steps={**steps, "random": STEPS["random"]}, seeds=[5, 6, 7, 8, 9])
    names = [step.step for step in found.steps.values()]
    assert [names.count(name) for name in STEPS] == [2, 2, 2, 5]
    for trial in trials(found):
        draw = 5 + (trial.seed - 5) % 2
        for need in trial.needs:
            step = found.steps[need]
            if step.step == "network":
                assert step.at == {"seed": draw}
            else:  # the control is drawn for every seed, from the draw of what it matches
                assert step.at == {"seed": trial.seed}
                assert found.steps[step.needs[0]].at == {"seed": draw}


def test_steps_stand_before_what_needs_them() -> None:
    seen: set[str] = set()
    for name, step in plan().steps.items():
        assert set(step.needs) <= seen
        seen.add(name)


def test_a_train_step_starts_from_the_base_and_others_share_its_data() -> None:
    found = plan(base={"data": "digits", "epochs": 7, "weight_decay": 0.5})
    by_name = {name.split(",")[0]: step for name, step in found.steps.items()}
    assert by_name["extractor"].settings["weight_decay"] == 0.5
    assert by_name["extractor"].settings["epochs"] == 2
    assert by_name["features"].settings["data"] == "digits"
    assert "weight_decay" not in by_name["features"].settings


def test_names_stay_when_the_study_grows_and_change_when_it_changes() -> None:
    before = set(plan().trials)
    grown = set(plan(seeds=4, title="new").trials)
    assert before < grown
    wider = plan(grid={"batch_size": [32, 64, 128], "selection": ["full", "random", "network"]})
    assert before < set(wider.trials)
    assert before.isdisjoint(plan(base={"data": "digits", "epochs": 2}).trials)
    # Options that do not change the result do not change the name.
    assert before == set(plan(base={"data": "digits", "epochs": 1, "device": "cpu"}).trials)


def test_names_are_those_of_version_0_1(tmp_path: Path) -> None:
    """Folders of earlier versions must be found again."""
    content = {
        "seeds": [3],
        "base": {
            "data": "digits",
            "epochs": 2,
            **{"device": "cpu", "threads": 2, "graph": "off", "checkpoint_every": 5},
            **{"tensorboard": True, "evaluate_every": 0, "workers": 2},
        },
        "grid": {"selection": ["full", "network"], "step_epochs": [[1.0, 2.0]]},
        "steps": {
            "extractor": {"do": "train", "epochs": 4, "device": "cpu"},
            "features": {"do": "embed", "run": "extractor", "device": "cpu"},
            "network": {
                "do": "select",
                "filter": "network",
                "features": "features",
                "drop": 0.1,
                "each": ["seed"],
            },
        },
    }
    assert list(Study.from_dict(content, tmp_path).plan().tasks) == [
        "extractor,id=d1a104",
        "features,id=53ab4a",
        "network,seed=3,id=6e4d94",
        "selection=full,step_epochs=1.0-2.0,seed=3,id=2f8e4a",
        "selection=network,step_epochs=1.0-2.0,seed=3,id=ccc2f4",
    ]


def test_names_of_many_axes_fit_a_file_system_and_stay_distinct(tmp_path: Path) -> None:
    grid: dict[str, list[Any]] = {
        "model": ["resnet20", "resnet32"],
        "batch_size": [32],
        "warmup_epochs": [0.5],
        "weight_decay": [0.00012345],
        "label_smoothing": [0.123456789],
        "lr_rule": ["linear"],
        "optimizer": ["sgd"],
        "momentum": [0.912345678],
        "evaluate_every": [1],
        "micro_batch": [16],
        "selection": [f"{'long-name-of-a-selection' * 3}.parquet"],
        "lr": [0.123456789, 0.223456789],
        "threads": [1, 2],
    }
    names = list(plan(grid=grid, steps={}).trials)
    assert len(set(names)) == len(names) == 16
    step = "ä" * 80  # 160 bytes
    steps = {step: {"do": "select", "filter": "random", "each": ["seed", "model", "lr"]}}
    long = {**grid, "selection": ["full", step], "data": ["a" * 40], "device": ["cpu"]}
    long["epochs"] = [1.2345678901]
    planned = plan(grid=long, steps=steps)
    assert any(len(name.encode()) == LONGEST_NAME for name in planned.trials)
    for name, task in planned.tasks.items():
        assert len(name.encode()) <= LONGEST_NAME
        assert name.endswith(f",id={task.identity}")
        (tmp_path / f".{name}.json.1234567-abcdef.tmp").write_text("")
    assert names[0].startswith("model=resnet20,batch_size=32,")


def test_the_number_of_workers_is_part_of_the_name() -> None:
    """With weak scaling it changes the batch."""
    one, two = (
        set(plan(base={"data": "digits", "scaling": "weak", "workers": n}).trials) for n in (1, 2)
    )
    assert one.isdisjoint(two)


def test_another_extractor_makes_other_filtered_trials_and_the_same_full_ones() -> None:
    steps = {**STEPS, "extractor": {"do": "train", "epochs": 3}}
    before, after = plan().trials, plan(steps=steps).trials
    assert {n for n in before if "full" in n} == {n for n in after if "full" in n}
    assert {n for n in before if "network" in n}.isdisjoint(after)


def test_a_step_for_each_data_set() -> None:
    steps = {name: {**table, "each": ["data"]} for name, table in STEPS.items()}
    found = plan(
        base={"epochs": 1},
        grid={"data": ["digits", "cifar10"], "selection": ["network"]},
        steps=steps,
    )
    for trial in trials(found):
        (need,) = trial.needs
        assert found.steps[need].settings["data"] == trial.settings["data"]


def test_steps_for_each_arm_use_its_data() -> None:
    arms = {"clean": {}, "noisy": {"data": "digits-noisy"}}
    steps = {name: {**table, "each": ["arm"]} for name, table in STEPS.items()}
    found = plan(arms=arms, grid={"selection": ["network"]}, steps=steps)
    assert len(found.steps) == 2 * 3
    for step in found.steps.values():
        noisy = step.at["arm"] == "noisy"
        assert step.settings["data"] == ("digits-noisy" if noisy else "digits"), step.name


COMMAND = "python train.py --seed {seed} --keep {selection} --data {data} --out {out}"


@pytest.mark.parametrize("axis", ["data", "arm"])
def test_a_step_for_each_data_set_of_a_command(axis: str) -> None:
    names = ["digits", "cifar10"]
    content: dict[str, Any] = {"grid": {"selection": ["half"]}}
    if axis == "data":
        content["grid"]["data"] = names
    else:
        content["arms"] = {name: {"data": name} for name in names}
    half = {"do": "select", "filter": "random", "drop": 0.5, "each": [axis]}
    found = plan(base={"command": COMMAND}, steps={"half": half}, **content)
    assert sorted(step.settings["data"] for step in found.steps.values()) == sorted(names)
    for trial in trials(found):
        (need,) = trial.needs
        assert found.steps[need].settings["data"] == trial.settings["data"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"grid": {"selection": ["netwrk"]}}, 'did you mean "network"'),
        ({"grid": {"selection": ["features"]}}, 'kind select, got "features" of kind embed'),
        (
            {"steps": {**STEPS, "features": {"do": "embed", "run": "network"}}},
            'run must name a step of kind train, got "network"',
        ),
        ({"steps": {**STEPS, "network": {"do": "select", "features": "featurs"}}}, "features"),
        (
            {"steps": {**STEPS, "extractor": {"do": "train", "each": ["seed"]}}},
            'but features, which needs it, does not; add each = \\["seed"\\] to \\[steps.features',
        ),
        (
            {"steps": {**STEPS, "extractor": {"do": "train", "selection": "network"}}},
            "need each other",
        ),
        ({"base": {"data": "digits", "epochs": -1}}, "epochs must be greater than 0, got -1"),
        ({"arms": {"a/a": {}, "a a": {}}}, "have the same options and the same name"),
    ],
)
def test_refusals(content: dict[str, Any], message: str) -> None:
    with pytest.raises(ThresherError, match=message):
        plan(**content)


def test_long_trials_cost_more() -> None:
    small, large = (t.cost for t in trials(plan(grid={"batch_size": [256, 10368]}, seeds=1)))
    assert small > large
    deep = plan(base={"data": "d", "model": "resnet101"}, grid={"batch_size": [10368]}, seeds=1)
    assert trials(deep)[0].cost > large


def test_the_output_of_a_step_is_found_by_its_name(tmp_path: Path) -> None:
    content = {
        "base": {"data": "digits"},
        "grid": {"selection": ["random", "network"]},
        "steps": STEPS,
        "seeds": 2,
    }
    study = Study.from_dict(content, tmp_path)
    assert study.output("network").name == "selection.parquet"
    assert study.output("random", seed=1) != study.output("random", seed=0)
    with pytest.raises(ThresherError, match="runs 2 times; give the values of seed"):
        study.output("random")
    with pytest.raises(ThresherError, match='needs a step "other"'):
        study.output("other")
