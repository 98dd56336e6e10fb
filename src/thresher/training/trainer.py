"""The trainer of one run, from its first step to its result."""

import logging
import math
import time
from dataclasses import replace
from pathlib import Path

import torch

from thresher.device_check import wide
from thresher.distributed.group import Group
from thresher.environment import git_commit, hardware, versions
from thresher.models import weights
from thresher.paths import RunPaths
from thresher.progress import Bar, bar
from thresher.training import folder
from thresher.training.batch_growth import next_batch
from thresher.training.branch import branch_state, continues_growth
from thresher.training.config import TrainConfig
from thresher.training.device_data import Part
from thresher.training.dynamics import Dynamics
from thresher.training.epochs import EpochPlan, EpochPlanner, EpochSamples
from thresher.training.evaluate import averaged, evaluate
from thresher.training.execution import seed_step
from thresher.training.input_clock import InputClock
from thresher.training.input_remarks import slow_decoded, warn_of_waiting
from thresher.training.noise_observer import NoiseObserver
from thresher.training.optimizers import set_rate
from thresher.training.prepared import Workload, keep, prepare
from thresher.training.record import Metrics, finite
from thresher.training.rehearsal import resilient_step
from thresher.training.remarks import remarks, tiny_last_batch
from thresher.training.resolved import Resolved, tiny_rest
from thresher.training.result import PackIdentity, RunResult, Sharpness, Status, TargetReached
from thresher.training.sharpness import sharpness_of
from thresher.training.state import RunState, Saver
from thresher.training.stop import StopRequest
from thresher.training.trace import start_trace

LOOK_EVERY = 64
"""Steps between two looks at losses and signals on a GPU, each of which waits for it."""
logger = logging.getLogger(__name__)


class Trainer:
    """Trains one network on one worker of a group; `request` may ask it to stop or save."""

    def __init__(
        self, config: TrainConfig, group: Group, work: Workload, request: StopRequest
    ) -> None:
        self.config, self.group, self.request = config, group, request
        self.pack, self.split, self.resolved = work.pack, work.split, work.resolved
        self.paths = RunPaths(Path(config.out))
        self.prepared = prepare(config, group, work)
        self.step, self.losses = self.prepared.step, self.prepared.losses
        self.data, self.model = self.step.data, self.step.model
        self.optimizer = self.step.optimizer
        self.grows = self.resolved.largest_batch is not None
        noise = None
        if config.noise_scale or self.grows:
            # The batch must not depend on the number of workers.
            noise = NoiseObserver.observing(self.step, halves=self.grows)
        samples = EpochSamples(config, work.split, work.pruner, self.resolved)
        dynamics = Dynamics(len(work.split.train)) if config.record_dynamics else None
        self.state = RunState(self.step, samples, dynamics, noise)
        self.planner = EpochPlanner(config, self.resolved, work.pruner is not None)
        self.saver = Saver(self.paths, group, config.checkpoint_every)
        self.metrics = Metrics(self.paths.metrics, group.first)
        self.correct = torch.zeros(len(work.split.test), dtype=torch.uint8, device=group.device)
        """Which test samples the final network predicts correctly."""
        self._tested: tuple[float, float] | None = None  # with the weights as they are
        self.input_clock = InputClock(group.device)
        self._save_requested = self._stop_requested = False
        self._begun = 0.0
        """When the run began, by a clock that stood still while it was interrupted."""

    # ---- the run ------------------------------------------------------------------------------

    def run(self, quiet: bool = False) -> RunResult:
        """Train to the end, from the newest checkpoint if there is one; write the result."""
        shown = self.group.first and not quiet
        self.prepared.rehearse(self.resolved)
        self.resolved = self.resolved.with_micro_batch(self.step.micro, self.step.align)
        traced = self.config.trace and self.group.first
        self.trace = start_trace(self.paths.root) if traced else None
        try:
            if self.saver.resume(self.state):
                if shown:
                    at = self.state.progress.step
                    logger.info("resuming %s from step %d", self.paths.root, at)
            elif self.config.branch_from is not None:
                self.state.restore(branch_state(self.config, self.resolved.samples))
                if continues_growth(self.config) and not self.state.progress.offset:
                    self._grow_batch()
            self.group.on_first(
                lambda: folder.write_config(self.config, self.resolved, self.pack, self.split)
            )
            done, options = self.state.progress, self.config.to_dict()
            self.group.on_first(
                lambda: self.metrics.begin(done.step, done.epoch, self.config.sinks, options)
            )
            if shown:
                self._show_settings()
            self.prepared.capture(self.resolved)
            label = f"training {self.config.model}"
            total, unit = self.resolved.total_steps, "steps"
            if self.grows:
                total, unit = self.resolved.total_samples, "samples"
            with bar(label, total, unit, active=shown) as visible:
                status = self.fit(visible)
            if not self.step.exchange.synchronised:  # a target was reached between two averages
                self.step.finish()
                self._tested = None
            result = self._result(status)
        finally:
            self.step.exchange.close()
            self.data.loader.close()
            self.metrics.close()
            if self.trace is not None:
                self.trace.stop()
        if status != "stopped":
            self._save_result(result)
            keep(self.prepared)
        return result

    def fit(self, shown: Bar) -> Status:
        """Train epoch by epoch until the budget is used up, a target is reached or a signal."""
        done = self.state.progress
        self._begun = time.monotonic() - done.wall
        shown.resume(done.samples if self.grows else done.step)
        # A run killed after the checkpoint of its last step has that epoch still to end.
        while done.ended is None and (not self.planner.is_over(done) or done.offset):
            status = self._epoch(shown)
            done.wall = time.monotonic() - self._begun
            if status is not None:
                return status
        return done.ended or "finished"

    # ---- an epoch -----------------------------------------------------------------------------

    def _epoch(self, shown: Bar) -> Status | None:
        """Train one epoch, or the rest of it; return how the run ended if it did."""
        done, self._tested = self.state.progress, None
        before = done.seconds
        plan = self._plan_epoch()
        parts = self.data.parts(plan.order, plan.cuts, self.step.align)
        read = 0
        begun = time.perf_counter()
        for number, (begin, end) in enumerate(plan.cuts):
            part = next(parts) if self.data.resident else self.input_clock.next(parts)
            self._step(number, part, end - begin, plan.rates[number])
            done.step += 1
            done.samples += end - begin
            done.offset, done.rate = end, plan.rates[number]
            if self.trace is not None:
                self.trace.step()
            shown.advance(end - begin if self.grows else 1)
            last = number == len(plan.cuts) - 1
            due = last or done.step % LOOK_EVERY == 0 or self.saver.falls_on(done.step)
            if self.group.device.type != "cpu" and not due:
                continue
            losses = self._read_losses(plan, read, number + 1)
            read = number + 1
            done.input_wait += self.input_clock.take()
            shown.note(f"loss {losses[-1]:.4f}")
            if not all(map(math.isfinite, losses)):
                done.seconds += time.perf_counter() - begun
                return "diverged"
            if self._save_requested or self._stop_requested:
                done.seconds += time.perf_counter() - begun
                if self.step.exchange.synchronised:
                    self._save()
                    if self._stop_requested and not last:
                        return "stopped"
                begun = time.perf_counter()
        done.seconds += time.perf_counter() - begun
        return self._end_epoch(len(plan.order), done.seconds - before)

    def _plan_epoch(self) -> EpochPlan:
        """Choose the samples, batches and rates of this epoch and send them to the device."""
        done, samples = self.state.progress, self.state.samples
        plan = self.planner.plan(samples.order(done.epoch), done)
        if samples.chosen is not None:
            self.data.set_weights(samples.chosen[1])
        self.data.set_epoch(done.epoch)
        for captured in self.prepared.captured.values():
            captured.batches.begin(plan)
        return plan

    def _end_epoch(self, epoch_size: int, seconds: float) -> Status | None:
        if self.state.progress.epoch == 0 and self.group.first:
            warn_of_waiting(self.input_clock.share_after_start(seconds), self.data.loader)
        self.state.end_epoch(epoch_size)
        done, every = self.state.progress, self.config.evaluate_every
        over = self.planner.is_over(done)
        if over:
            self.step.finish()
        evaluates = over or (every > 0 and done.epoch % every == 0)
        reached = evaluates and self._evaluate()
        self._write_epoch(evaluates)
        if reached:
            return "target"
        if over:
            # The last update may be the one that diverges; no training loss follows it.
            nothing_predicted = done.accuracy is None and len(self.split.watched) > 0
            return "diverged" if nothing_predicted else "finished"
        self._grow_batch()
        if self._stop_requested and self.step.exchange.synchronised:
            self._save()
            return "stopped"
        return None

    def _grow_batch(self) -> None:
        """Choose the batch of the next epoch if it follows the noise scale."""
        largest, noise, done = self.resolved.largest_batch, self.state.noise, self.state.progress
        if largest is None or noise is None:
            return
        now = self.planner.batch(done)
        batch = self.group.on_first(lambda: next_batch(now, largest, noise.estimate))
        if batch != now:
            done.grown.append([done.epoch, batch])
            if self.group.first:
                logger.info(
                    "epoch %d: batch %s (noise scale %.0f)",
                    *(done.epoch + 1, f"{batch:,}", noise.estimate.value),
                )
                few = tiny_rest(self.resolved, batch)
                if few and done.epoch < int(self.resolved.passes):
                    logger.warning(tiny_last_batch(few, batch))

    def _evaluate(self) -> bool:
        """Evaluate on validation (or test); return whether a target is reached."""
        done, config = self.state.progress, self.config
        self._tested = None if len(self.split.validation) else self._test()
        accuracy, loss = self._tested or evaluate(self.step, self.split.validation)
        done.accuracy, done.loss = finite(accuracy), finite(loss)
        by_loss = config.target_loss is not None and loss <= config.target_loss
        by_accuracy = config.target_accuracy is not None and accuracy >= config.target_accuracy
        if by_loss or by_accuracy:
            done.target = TargetReached(done.seconds, done.samples, done.step)
        return by_loss or by_accuracy

    def _test(self) -> tuple[float, float]:
        self.correct.zero_()
        return evaluate(self.step, self.split.test, self.correct)

    # ---- a step -------------------------------------------------------------------------------

    def _step(self, number: int, part: Part, count: int, rate: float) -> None:
        """Train on one batch: replay a captured step, or run it eagerly."""
        noise = self.state.noise
        observed = noise is not None and noise.is_due(self.state.progress.step)
        captured = self.prepared.captured.get(count)
        if captured is None or observed or self.prepared.random:
            seed_step(self.config.seed, self.state.progress.step, self.group)
        if captured is not None and not observed:
            captured(part)
            return
        if captured is not None:
            captured.skip()
        set_rate(self.optimizer, rate)
        self.step.observer = noise if observed else None
        micro = self.step.micro
        self.losses[number] = resilient_step(self.step, part, count)
        self.step.observer = None
        if self.step.micro != micro:
            self.resolved = self.resolved.with_micro_batch(self.step.micro, self.step.align)
            logger.warning(
                "out of memory in step %d; continuing with %d samples at once",
                *(self.state.progress.step, self.step.micro),
            )

    # ---- between steps ------------------------------------------------------------------------

    def _read_losses(self, plan: EpochPlan, begin: int, end: int) -> list[float]:
        """Record and return the losses of steps begin … end; agree on what signals ask for."""
        due = self.saver.is_due(self.state.progress.step)
        flags = [self.request.stop, self.request.save, due]
        sums = wide(self.losses[begin:end])
        packed = self.group.all_reduce_sum(torch.cat([sums, sums.new_tensor(flags)]))
        *losses, stop, save, due_somewhere = packed.tolist()
        losses = [loss / self.state.samples.mean_weight for loss in losses]
        self.request.save = False
        self._stop_requested |= stop > 0
        self._save_requested |= save > 0 or due_somewhere > 0
        done = self.state.progress
        sizes = [e - b for b, e in plan.cuts[begin:end]]
        step, samples = done.step - len(losses), done.samples - sum(sizes)
        for loss, size, rate in zip(losses, sizes, plan.rates[begin:end], strict=True):
            step, samples = step + 1, samples + size
            done.epoch_loss += loss * size
            self.metrics.write(
                "step", step, epoch=done.epoch, samples=samples, loss=finite(loss), lr=rate
            )
        return losses

    def _save(self) -> None:
        self.metrics.flush()
        self.state.progress.wall = time.monotonic() - self._begun
        self.saver.save(self.state)
        self._save_requested = False

    # ---- what is written ----------------------------------------------------------------------

    def _show_settings(self) -> None:
        config, numbers, device = self.config, self.resolved, self.group.device
        what = f"{config.model} on {config.data} ({device})"
        logger.info("training %s\n%s", what, numbers.table())
        if config.validation is None and len(self.split.validation) and not len(self.split.test):
            logger.info(
                f"{self.pack.name} has no test images: {len(self.split.validation):,} training "
                "images are held out to measure accuracy"
            )
        for remark in remarks(config, numbers, self.planner.known_epochs):
            logger.warning(remark)

    def _write_epoch(self, evaluated: bool) -> None:
        done, noise = self.state.progress, self.state.noise
        values: dict[str, float | None] = {
            "epoch": done.epoch,
            "samples": done.samples,
            "seconds": done.seconds,
            "images_per_s": done.images_per_s,
            "input_wait_share": done.input_wait_share,
            "train_loss": finite(done.train_loss),
            "accuracy": done.accuracy if evaluated else None,
            "loss": done.loss if evaluated else None,
        }
        if noise is not None:
            values["noise_scale"] = noise.estimate.value
        self.metrics.write("epoch", done.step, **values)
        self.metrics.flush()

    def _result(self, status: Status) -> RunResult:
        done, split, noise = self.state.progress, self.split, self.state.noise
        accuracy, loss = (None, None) if status == "stopped" else self._tested or self._test()
        validation = (done.accuracy, done.loss) if len(split.validation) else (None, None)
        if status == "diverged" and len(split.validation):
            validation = evaluate(self.step, split.validation)
        return RunResult(
            status=status,
            accuracy=finite(accuracy),
            loss=finite(loss),
            validation_accuracy=finite(validation[0]),
            validation_loss=finite(validation[1]),
            # That of the last whole epoch is from before it diverged.
            train_loss=None if status == "diverged" else finite(done.train_loss),
            steps=done.step,
            samples=done.samples,
            epochs=done.samples / self.resolved.samples,
            seconds=done.seconds,
            wall_seconds=done.wall,
            images_per_s=done.images_per_s,
            input_wait_share=done.input_wait_share,
            time_to_target=done.target,
            noise_scale=None if noise is None else noise.estimate.value,
            sharpness=self._sharpness() if status in ("finished", "target") else None,
            resolved=self._resolved_at_end(),
            config=self.config,
            versions=versions(),
            hardware=hardware(self.group.device.type),
            git_commit=git_commit(),
            data=PackIdentity(self.pack.name, self.pack.fingerprint),
        )

    def _resolved_at_end(self) -> Resolved:
        """Return the numbers of the run with the batches that it grew to."""
        resolved, grown = self.resolved, self.state.progress.grown
        phases = [[0, resolved.global_batch], *grown] if grown else resolved.batch_phases
        slow = slow_decoded(self.data.loader, self.group, resolved.decoder)
        return replace(resolved, slow_decoded=slow, batch_phases=phases)

    def _sharpness(self) -> Sharpness | None:
        """Measure the sharpness if asked for, on the first worker; the others wait for it."""
        if not self.config.sharpness:
            return None
        with averaged(self.model, self.group, self.step.exchange.samples_apart):
            if not self.group.first:
                return None
            return sharpness_of(self.step, self.split)

    def _save_result(self, result: RunResult) -> None:
        """Write the weights first and `result.json`, which says that all else is there, last."""
        with averaged(self.model, self.group):
            self.group.on_first(lambda: weights.write(self.model.state_dict(), self.paths.model))
        if self.config.keep_checkpoint:
            self.state.progress.ended = result.status
            self._save()

        def write() -> None:
            if self.state.dynamics is not None:
                self.state.dynamics.write(self.paths.dynamics, self.pack, self.split)
            folder.write_correct(self.paths, self.correct.cpu().numpy())
            folder.write_result(self.paths, result, self.config.keep_checkpoint)

        self.group.on_first(write)
