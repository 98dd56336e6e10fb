"""`train(config)`: one run from its configuration to its result."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from thresher.data.pack import Pack
from thresher.distributed.group import Group, join, placement
from thresher.distributed.launch import GroupStopped
from thresher.distributed.worker import run_in_group
from thresher.environment import git_commit, hardware, versions
from thresher.errors import InvalidValueError, ThresherError
from thresher.paths import RunPaths, atomic_file, write_json
from thresher.progress import bar, say
from thresher.training import checkpoint, folder, graph
from thresher.training.config import TrainConfig, check
from thresher.training.dynamics import Dynamics
from thresher.training.evaluate import averaged, evaluate
from thresher.training.parts import piece_count
from thresher.training.pruners import DynamicPruner, make_pruner
from thresher.training.record import Metrics, finite
from thresher.training.rehearsal import rehearse
from thresher.training.resolved import Resolved, resolve, tiny_last_batch, with_micro_batch
from thresher.training.result import PackIdentity, RunResult, Status
from thresher.training.run import Run
from thresher.training.samples import Samples, choose
from thresher.training.setup import (
    assemble,
    build_model,
    free_device_memory,
    make_augment,
    torch_settings,
)
from thresher.training.signals import Wishes, listen
from thresher.training.state import Progress, exchange_states, restore


def train(
    config: TrainConfig, *, pruner: DynamicPruner | None = None, quiet: bool = False
) -> RunResult:
    """Train one network and return its result.

    Under torchrun or srun this process is one of their workers. Otherwise `config.workers` above
    one starts that many processes on this machine.

    Args:
        config: What to train, on what, and how.
        pruner: A dynamic pruner of your own, on one worker or under torchrun; otherwise
            `config.dynamic` names one.
        quiet: Show neither the derived settings nor a progress bar.

    Returns:
        The result, also written to `result.json` in the folder `config.out`. With
        `config.resume`, that of a run which has finished already.

    Raises:
        ThresherError: A setting is wrong, or the folder holds another run.
    """
    check(config)
    in_group = config.workers > 1 and placement().world == 1
    if in_group and pruner is not None:
        raise InvalidValueError(
            "a pruner object cannot be sent to worker processes",
            "set `workers` to 1, use `dynamic`, or start the workers with torchrun",
            "pruner",
        )
    if pruner is None:
        pruner = make_pruner(config.dynamic)
    finished = folder.finished(config)
    if finished is not None:
        return finished
    if in_group:
        return _train_in_group(config, quiet)
    try:
        return _train_here(config, pruner, quiet)
    finally:
        if torch.cuda.is_initialized():
            free_device_memory(config)


def _train_in_group(config: TrainConfig, quiet: bool) -> RunResult:
    """Train in worker processes on this machine; refuse what can be refused before they start."""
    folder.admit(config)
    samples = choose(config, Pack.open(config.data))
    resolve(config, samples.count, len(samples.train))
    order = {"config": config.to_dict(), "quiet": quiet}
    target = "thresher.training.train:train_in_worker"
    try:
        answer = run_in_group(target, order, config.workers, config.max_restarts)
        return RunResult.from_dict(answer)
    except GroupStopped:
        if RunPaths(Path(config.out)).result.exists():
            return RunResult.load(config.out)
        raise ThresherError(
            f"the run in {config.out} was stopped while it was starting", "start it again"
        ) from None


def train_in_worker(order: dict[str, Any]) -> dict[str, Any]:
    """Train as one worker of a group that `train` started."""
    return train(TrainConfig.from_dict(order["config"]), quiet=order["quiet"]).to_dict()


def _train_here(config: TrainConfig, pruner: DynamicPruner | None, quiet: bool) -> RunResult:
    pack = Pack.open(config.data)
    samples = choose(config, pack)
    resolved = resolve(config, samples.count, len(samples.train), placement().world)
    make_augment(config, pack).output_size(*(pack.image_shape or (config.image_size,) * 2)[:2])
    model = build_model(config, pack)
    group = join(config.device)
    why_not = graph.ruled_out(config, group)
    if config.graph == "on" and why_not:
        raise ThresherError(f"--graph on is not possible: {why_not}", "leave it out")
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch_settings(config, group))
        wishes = stack.enter_context(listen())
        stack.enter_context(_owned(config, group))
        return _train(config, resolved, group, pack, samples, model, pruner, wishes, quiet)


def _train(
    config: TrainConfig,
    resolved: Resolved,
    group: Group,
    pack: Pack,
    samples: Samples,
    model: torch.nn.Module,
    pruner: DynamicPruner | None,
    wishes: Wishes,
    quiet: bool,
) -> RunResult:
    paths = RunPaths(Path(config.out))
    per_sample = pruner is not None or config.record_dynamics
    parts = assemble(config, resolved, group, pack, samples, model, per_sample)
    step = parts.step
    micro = rehearse(step, resolved)
    if micro != (0 if config.micro_batch == "auto" else config.micro_batch):
        resolved = with_micro_batch(resolved, micro, step.ghost)
    dynamics = Dynamics(len(samples.train)) if config.record_dynamics else None
    if pruner is not None:
        pruner.begin(samples.train[samples.kept], math.ceil(config.epochs), config.seed)
    saved = group.on_first(lambda: _newest_step(paths))
    metrics = Metrics(paths.metrics, group.first, config.tensorboard)
    run = Run(config, resolved, pack, samples, parts, pruner, dynamics, metrics, wishes, micro)
    try:
        if saved is not None:
            run.progress = _resume(run, paths)
            say_first(group, quiet, f"going on from step {run.progress.step:,} in {paths.root}")
        group.on_first(lambda: _write_config(config, resolved, samples, pack, paths))
        metrics.rewind(run.progress.step)
        _show(group, quiet, config, resolved)
        run.captured = _capture(run, config, resolved)
        with _bar(group, quiet, config, resolved) as shown:
            shown.advance(run.progress.step)
            status = run.go(shown)
        result = _result(run, status)
    finally:
        step.parallel.close()
        metrics.close()
    if status != "stopped":
        with averaged(parts.model, group):
            weights = {n: t.cpu().contiguous().clone() for n, t in parts.model.state_dict().items()}
        group.on_first(lambda: _finish(run, result, weights))
    return result


def _resume(run: Run, paths: RunPaths) -> Progress:
    """Every rank reads the same checkpoint (all see the same folder)."""
    taken = checkpoint.newest(paths.checkpoints)
    assert taken is not None
    progress = restore(taken, run.parts, run.dynamics)
    run.step.parallel.restore(exchange_states(taken))
    if run.pruner is not None:
        arrays = {name: tensor.numpy() for name, tensor in taken.part("pruner").items()}
        states = {n.removeprefix("state."): a for n, a in arrays.items() if n.startswith("state.")}
        run.pruner.restore(states)
        if "chosen" in arrays:
            run.chosen = (arrays["chosen"], arrays["weight"])
    return progress


def _newest_step(paths: RunPaths) -> int | None:
    taken = checkpoint.newest(paths.checkpoints)
    return None if taken is None else taken.meta["progress"]["step"]


@contextlib.contextmanager
def _owned(config: TrainConfig, group: Group) -> Iterator[None]:
    """Rank 0 holds the folder's lock for all."""
    with contextlib.ExitStack() as stack:

        def take() -> None:
            folder.admit(config)
            stack.enter_context(folder.locked(Path(config.out)))
            # Someone else may have begun between the two.
            folder.admit(config)

        group.on_first(take)
        yield


def _capture(run: Run, config: TrainConfig, resolved: Resolved) -> dict[int, graph.CapturedStep]:
    resident = run.step.loader.images is not None
    if config.graph == "off" or not resident or graph.ruled_out(config, run.group):
        return {}
    sizes = {resolved.global_batch: resolved.samples // resolved.global_batch}
    if run.pruner is None:
        sizes.setdefault(resolved.last_batch, 1)
    pieces = {n: piece_count(n, 1, run.micro, run.step.ghost) for n in sizes}
    return graph.capture(run.step, sizes, pieces, run.losses, must=config.graph == "on")


def _write_config(
    config: TrainConfig, resolved: Resolved, samples: Samples, pack: Pack, paths: RunPaths
) -> None:
    write_json(
        paths.config,
        {
            "config": config.to_dict(),
            "resolved": resolved.to_dict(),
            "data": {
                "name": pack.name,
                "fingerprint": pack.fingerprint,
                "mean": pack.mean.tolist(),
                "std": pack.std.tolist(),
                "train": samples.count,
                "validation": len(samples.validation),
                "test": len(samples.test),
            },
        },
    )


def _result(run: Run, status: Status) -> RunResult:
    done, config, samples = run.progress, run.config, run.samples
    accuracy, loss = (None, None) if status == "stopped" else evaluate(run.step, samples.test)
    validation = (done.accuracy, done.loss) if len(samples.validation) else (None, None)
    if status == "diverged" and len(samples.validation):
        validation = evaluate(run.step, samples.validation)
    noise = run.parts.noise
    return RunResult(
        status=status,
        accuracy=finite(accuracy),
        loss=finite(loss),
        validation_accuracy=finite(validation[0]),
        validation_loss=finite(validation[1]),
        train_loss=finite(done.train_loss),
        steps=done.step,
        samples=done.samples,
        epochs=done.samples / run.resolved.samples,
        seconds=done.seconds,
        wall_seconds=done.wall,
        images_per_s=finite(done.samples / done.seconds) if done.seconds else None,
        time_to_target=done.target,
        noise_scale=None if noise is None else finite(noise.value),
        resolved=run.resolved,
        config=config,
        versions=versions(),
        hardware=hardware(run.group.device.type),
        git_commit=git_commit(),
        data=PackIdentity(run.pack.name, run.pack.fingerprint),
    )


def _finish(run: Run, result: RunResult, weights: dict[str, torch.Tensor]) -> None:
    """Weights first, then the rest; result.json last: it says that all else is there."""
    paths = run.paths
    with atomic_file(paths.model) as temporary:
        temporary.write_bytes(save(weights))
    if run.dynamics is not None:
        run.dynamics.write(paths.dynamics, run.pack, run.samples.train)
    write_json(paths.result, result.to_dict())
    for old in paths.checkpoints.glob("*"):
        old.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        paths.checkpoints.rmdir()


def say_first(group: Group, quiet: bool, text: str) -> None:
    if group.first and not quiet:
        say(text)


def _show(group: Group, quiet: bool, config: TrainConfig, resolved: Resolved) -> None:
    """Everything that was derived, before the run."""
    rows = {"model": config.model, "data": config.data, "device": str(group.device)}
    rows |= {
        k: f"{v:,.6g}" if isinstance(v, float) else f"{v:,}" for k, v in resolved.to_dict().items()
    }
    width = max(map(len, rows))
    text = "\n".join(f"  {k.replace('_', ' ').ljust(width)}  {v}" for k, v in rows.items())
    say_first(group, quiet, text)
    few = tiny_last_batch(resolved)
    if few:
        say_first(
            group,
            quiet,
            f"careful: the last batch of each epoch holds {few} of {resolved.global_batch:,} "
            "samples and steps at the full rate; another --batch-size avoids that",
        )


@contextlib.contextmanager
def _bar(group: Group, quiet: bool, config: TrainConfig, resolved: Resolved) -> Iterator[Any]:
    if not group.first or quiet:
        yield _NoBar()
        return
    with bar(f"training {config.model}", resolved.total_steps, "steps") as shown:
        yield shown


class _NoBar:
    def advance(self, by: float = 1) -> None:
        pass

    def note(self, text: str) -> None:
        pass
