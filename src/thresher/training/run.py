"""The run itself: epochs of steps, with evaluations, checkpoints and a record between them."""

import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from thresher.data.order import epoch_order
from thresher.data.pack import Pack
from thresher.errors import ThresherError
from thresher.paths import RunPaths
from thresher.progress import Bar, say
from thresher.training import checkpoint, noise_scale
from thresher.training.config import TrainConfig
from thresher.training.dynamics import Dynamics
from thresher.training.evaluate import evaluate
from thresher.training.graph import CapturedStep
from thresher.training.parts import part, piece_count
from thresher.training.pruners import DynamicPruner
from thresher.training.record import Metrics, finite
from thresher.training.rehearsal import out_of_memory
from thresher.training.resolved import Resolved, schedule, with_micro_batch
from thresher.training.result import Status, TargetReached
from thresher.training.samples import Samples
from thresher.training.setup import Parts
from thresher.training.signals import Wishes
from thresher.training.state import Progress, collect
from thresher.training.step import Part, buffers_kept_on_error
from thresher.training.trace import Trace

LOOK_EVERY = 64
"""Steps that a GPU is left alone for; losses and signals are looked at in between."""
SAVE_EVERY_S = 60.0


class Run:
    """A run under way. `go` trains to the end and says how it ended."""

    def __init__(
        self,
        config: TrainConfig,
        resolved: Resolved,
        pack: Pack,
        samples: Samples,
        parts: Parts,
        pruner: DynamicPruner | None,
        dynamics: Dynamics | None,
        metrics: Metrics,
        wishes: Wishes,
        micro: int,
    ) -> None:
        self.config, self.resolved, self.pack, self.samples = config, resolved, pack, samples
        self.parts, self.step, self.group = parts, parts.step, parts.step.group
        self.pruner, self.dynamics, self.metrics, self.wishes = pruner, dynamics, metrics, wishes
        self.micro = micro
        self.paths = RunPaths(Path(config.out))
        self.progress = Progress()
        self.schedule = schedule(config, resolved)
        self.watched = samples.validation if len(samples.validation) else samples.test
        self.captured: dict[int, CapturedStep] = {}
        """By batch size; empty where steps run eagerly."""
        self.trace = Trace(self.paths.root, config.trace and self.group.first)
        self.losses = torch.zeros(resolved.steps_per_epoch, device=self.group.device)
        if config.precision == "fp64":
            self.losses = self.losses.double()
        self.chosen: tuple[np.ndarray, np.ndarray] | None = None
        """Of a dynamic pruner, for this epoch: (n,) bool and weights over the training samples."""
        self._saved_at = time.monotonic()
        self._want_save = self._want_stop = False

    # ---- the whole run ------------------------------------------------------------------------

    def go(self, bar: Bar) -> Status:
        """finished, target, diverged or stopped."""
        begun, before = time.monotonic(), self.progress.wall
        try:
            # A run killed after the last step's checkpoint has that epoch still to close.
            while not self._over() or self.progress.offset:
                status = self._epoch(bar)
                self.progress.wall = before + time.monotonic() - begun
                if status:
                    return status
            return "finished"
        finally:
            self.trace.close()

    def _over(self) -> bool:
        done, plan = self.progress, self.resolved
        if self.pruner is not None and self.config.budget == "epochs":
            return done.epoch >= math.ceil(self.config.epochs)
        if self.config.budget == "steps":
            return done.step >= plan.total_steps
        return done.samples >= plan.total_samples

    # ---- one epoch ----------------------------------------------------------------------------

    def _epoch(self, bar: Bar) -> Status | None:
        done = self.progress
        order = self._order()
        cuts = self._cuts(len(order))
        epoch_size = len(order)
        self.step.set_epoch(done.epoch)
        rates = [self._rate(begin, end, epoch_size) for begin, end in cuts]
        rows = torch.from_numpy(order).to(self.group.device)
        self._load_graphs(order, cuts, rates)
        feed = self._feed(rows, order, cuts)
        looked = 0
        begun = time.perf_counter()
        for number, (begin, end) in enumerate(cuts):
            self._one(number, next(feed), end - begin, rates[number])
            done.step += 1
            done.samples += end - begin
            done.offset = end
            self.trace.step()
            bar.advance()
            if not self._look(done.step, number == len(cuts) - 1):
                continue
            finite_so_far = self._read(looked, number + 1, cuts, rates)
            looked = number + 1
            bar.note(f"loss {self.losses_read:.4f}")
            if not finite_so_far:
                done.seconds += time.perf_counter() - begun
                return "diverged"
            if self._want_save or self._want_stop:
                done.seconds += time.perf_counter() - begun
                if self.step.parallel.equal:
                    self.save()
                    if self._want_stop and number < len(cuts) - 1:
                        return "stopped"
                begun = time.perf_counter()
        done.seconds += time.perf_counter() - begun
        return self._epoch_over(epoch_size)

    def _epoch_over(self, epoch_size: int) -> Status | None:
        done = self.progress
        self._after_epoch_tables()
        offset = done.offset
        done.train_loss = done.epoch_loss / max(1, min(epoch_size, offset))
        done.epoch, done.offset, done.epoch_loss = done.epoch + 1, 0, 0.0
        if self._over():
            self.step.finish()
        self.chosen = None
        if self.parts.noise is not None:
            self.parts.noise.settle()
        reached = False
        every = self.config.evaluate_every
        if self._over() or (every and done.epoch % every == 0):
            reached = self._evaluate()
        self._write_epoch()
        if reached:
            return "target"
        if self._over():
            return "finished"
        if self._want_stop and self.step.parallel.equal:
            self.save()
            return "stopped"
        return None

    def _order(self) -> np.ndarray:
        """This epoch's samples, as rows of the loader, up to where the budget ends."""
        done, kept = self.progress, self.samples.kept
        if self.pruner is not None:
            if self.chosen is None:
                mask, weights = self.pruner.choose(done.epoch)
                (where,) = np.nonzero(kept)
                chosen, weight = np.zeros(len(kept), bool), np.zeros(len(kept), np.float32)
                chosen[where], weight[where] = mask, weights
                self.chosen = (chosen, weight)
            kept = self.chosen[0]
            self.step.weights = torch.from_numpy(self.chosen[1]).to(self.group.device)
            if self.config.precision == "fp64":
                self.step.weights = self.step.weights.double()
        order = epoch_order(len(kept), self.config.seed, done.epoch, kept)
        if not len(order):
            raise ThresherError(f"the pruner left no sample for epoch {done.epoch}", "prune less")
        return order

    def _cuts(self, size: int) -> list[tuple[int, int]]:
        """The batches still to come in this epoch; the budget may end within it."""
        done, batch = self.progress, self.resolved.global_batch
        by_epochs = self.pruner is not None and self.config.budget == "epochs"
        if not by_epochs and self.config.budget != "steps":
            size = min(size, done.offset + self.resolved.total_samples - done.samples)
        cuts = [(b, min(b + batch, size)) for b in range(done.offset, size, batch)]
        if self.config.budget == "steps":
            cuts = cuts[: self.resolved.total_steps - done.step]
        return cuts

    def _rate(self, begin: int, end: int, epoch_size: int) -> float:
        """From the samples that a run without dynamic pruning would have seen by now."""
        share = self.resolved.samples / epoch_size
        seen = self.progress.epoch * self.resolved.samples + begin * share
        return self.resolved.peak_lr * self.schedule.factor(seen, end - begin)

    # ---- one step -----------------------------------------------------------------------------

    def _feed(self, rows: Tensor, order: np.ndarray, cuts: list[tuple[int, int]]) -> Iterator[Part]:
        """This worker's part of each batch."""
        group, ghost = self.group, self.step.ghost
        mine = [part(np.arange(b, e), group.rank, group.world, ghost) for b, e in cuts]
        spans = [(int(p[0]), int(p[-1]) + 1) if len(p) else (0, 0) for p in mine]
        if self.step.loader.images is not None:
            for begin, end in spans:
                yield Part(rows[begin:end])
            return
        positions = self.samples.train
        wanted = (positions[order[begin:end]] for begin, end in spans)
        batches = self.step.loader.batches(wanted)
        for (begin, end), batch in zip(spans, batches, strict=True):
            yield Part(rows[begin:end], batch.images)

    def _one(self, number: int, mine: Part, count: int, rate: float) -> None:
        measure = self.parts.noise is not None and self.progress.step % noise_scale.EVERY == 0
        captured = self.captured.get(count)
        if captured is not None and not measure:
            captured()
            return
        if captured is not None:
            captured.skip()
        self.step.set_rate(rate)
        self.losses[number] = self._eager(mine, count, measure)

    def _eager(self, mine: Part, count: int, measure: bool) -> Tensor:
        """A step; --micro-batch auto on one worker takes smaller pieces where memory ran out."""
        pieces = piece_count(count, self.group.world, self.micro, self.step.ghost)
        if self.config.micro_batch != "auto" or not self.group.alone:
            return self.step(mine, count, pieces, measure)
        try:
            with buffers_kept_on_error(self.parts.model):
                return self.step(mine, count, pieces, measure)
        except (RuntimeError, MemoryError) as error:
            smallest = self.step.ghost or 1
            now = self.micro or self.resolved.per_worker_batch
            if not out_of_memory(error) or now <= smallest:
                raise
        self.step.optimizer.zero_grad(set_to_none=True)
        if self.group.device.type == "cuda":
            torch.cuda.empty_cache()
        self.micro = max(smallest, now // 2)
        self.resolved = with_micro_batch(self.resolved, self.micro, self.step.ghost)
        say(f"out of memory in step {self.progress.step}; going on with {self.micro} at once")
        return self._eager(mine, count, measure)

    def _load_graphs(
        self, order: np.ndarray, cuts: list[tuple[int, int]], rates: list[float]
    ) -> None:
        """Tell the graphs which samples and rates this epoch's batches have."""
        for size, captured in self.captured.items():
            mine = [n for n, (begin, end) in enumerate(cuts) if end - begin == size]
            if mine:
                rows = np.stack([order[cuts[n][0] : cuts[n][1]] for n in mine])
                captured.begin(rows, [rates[n] for n in mine], mine)

    # ---- between steps ------------------------------------------------------------------------

    def _look(self, step: int, last: bool) -> bool:
        """Whether to read losses and wishes now. On a GPU that waits for it, so only at times."""
        every = self.config.checkpoint_every
        if self.group.device.type == "cpu" or last or step % LOOK_EVERY == 0:
            return True
        return bool(every) and step % every == 0

    def _read(self, begin: int, end: int, cuts: list[tuple[int, int]], rates: list[float]) -> bool:
        """Take the losses of steps begin … end and agree on what to do; False if one diverged."""
        due = self._due()
        flags = [float(self.wishes.stop), float(self.wishes.save), float(due)]
        news = torch.tensor(flags, dtype=torch.float64, device=self.group.device)
        packed = torch.cat([self.losses[begin:end].double(), news])
        *losses, stop, save, due_somewhere = self.group.all_reduce_sum(packed).tolist()
        self.wishes.save = False
        self._want_stop |= stop > 0
        self._want_save |= save > 0 or due_somewhere > 0
        done = self.progress
        sizes = [e - b for b, e in cuts[begin:end]]
        step = done.step - len(losses)
        samples = done.samples - sum(sizes)
        for loss, size, rate in zip(losses, sizes, rates[begin:end], strict=True):
            step, samples = step + 1, samples + size
            done.epoch_loss += loss * size
            self.metrics.write(
                "step", step, epoch=done.epoch, samples=samples, loss=finite(loss), lr=rate
            )
        self.losses_read = losses[-1]
        return all(math.isfinite(loss) for loss in losses)

    def _due(self) -> bool:
        every = self.config.checkpoint_every
        if every:
            return self.progress.step % every == 0
        return self.group.first and time.monotonic() - self._saved_at > SAVE_EVERY_S

    def save(self) -> None:
        """Write a checkpoint of this very step."""
        self.metrics.flush()
        if self.parts.noise is not None:
            self.parts.noise.settle()
        taken = collect(self.progress, self.parts, self.dynamics, self._pruning())
        step = self.progress.step
        self.group.on_first(lambda: str(checkpoint.write(self.paths.checkpoints, step, taken)))
        self._want_save = False
        self._saved_at = time.monotonic()

    def _pruning(self) -> dict[str, Tensor]:
        if self.pruner is None:
            return {}
        state = {f"state.{k}": torch.from_numpy(v) for k, v in self.pruner.state().items()}
        if self.chosen is not None:
            state["chosen"] = torch.from_numpy(self.chosen[0])
            state["weight"] = torch.from_numpy(self.chosen[1])
        return state

    def _after_epoch_tables(self) -> None:
        table = self.parts.table
        if table is None:
            return
        seen = table.summed().numpy()
        table.clear()
        if self.dynamics is not None:
            self.dynamics.epoch_over(self.progress.epoch, seen)
        if self.pruner is not None:
            (rows,) = np.nonzero(seen[0] > 0)
            self.pruner.observe(self.samples.train[rows], seen[1, rows])

    # ---- what is written ----------------------------------------------------------------------

    def _evaluate(self) -> bool:
        """Test on the watched split; whether the target is reached."""
        done, config = self.progress, self.config
        accuracy, loss = evaluate(self.step, self.watched)
        done.accuracy, done.loss = finite(accuracy), finite(loss)
        by_loss = config.target_loss is not None and loss <= config.target_loss
        by_accuracy = config.target_accuracy is not None and accuracy >= config.target_accuracy
        if by_loss or by_accuracy:
            done.target = TargetReached(done.seconds, done.samples, done.step)
        return by_loss or by_accuracy

    def _write_epoch(self) -> None:
        done = self.progress
        noise = None if self.parts.noise is None else finite(self.parts.noise.value)
        values = {
            "epoch": done.epoch,
            "samples": done.samples,
            "seconds": done.seconds,
            "images_per_s": finite(done.samples / done.seconds if done.seconds else None),
            "train_loss": finite(done.train_loss),
            "accuracy": done.accuracy,
            "loss": done.loss,
        }
        if self.parts.noise is not None:
            values["noise_scale"] = noise
        self.metrics.write("epoch", done.step, **values)
        self.metrics.flush()
