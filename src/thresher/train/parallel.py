"""The objective among workers: DDP with a hook that *sums*, or nothing for one worker.

Each worker's loss is already divided by the global number of samples, so the sum of the gradients
is the gradient of the global mean, however unevenly the batch was cut.
"""

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from thresher.distributed.group import Group
from thresher.train.config import TrainConfig
from thresher.train.noise_scale import NoiseScale


class Parallel:
    """Call it like the objective. `ready` must be called once after a first, rehearsed step."""

    def __init__(self, objective: Any, model: nn.Module, config: TrainConfig, group: Group) -> None:
        self.config, self.group, self.model = config, group, model
        self.module = objective
        self.state: Any = None
        self._noise: NoiseScale | None = None
        self._noise_scale, self._noise_batch = 0.0, 0.0
        self._heard: list[Tensor] = []
        if self.reduces:
            self.module = torch.nn.parallel.DistributedDataParallel(
                objective,
                device_ids=[group.device] if group.device.type == "cuda" else None,
                bucket_cap_mb=config.bucket_mb,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
            )

    @property
    def reduces(self) -> bool:
        """Whether gradients are summed every step."""
        return not self.group.alone and self.config.average_every == 1

    def __call__(self, images: Tensor, labels: Tensor, weights: Tensor | None) -> Any:
        return self.module(images, labels, weights)

    def no_sync(self) -> AbstractContextManager[Any]:
        return self.module.no_sync() if self.reduces else contextlib.nullcontext()

    def ready(self) -> None:
        """Register the hook. DDP has laid out its buckets anew after the rehearsed step, in the
        order in which gradients came; a resumed run has then the same buckets as an unbroken one,
        and sums in the same order."""
        if not self.reduces or self.state is not None:
            return
        from thresher.distributed.hooks import gradient_hook

        parameters = list(self.model.named_parameters())
        self.state, hook = gradient_hook(self.config.compress, self.config.allreduce, parameters)

        def listening(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            if self._noise is not None:
                self._heard.append(bucket.buffer().double().square().sum())
                if bucket.is_last():
                    self._tell()
            return hook(state, bucket)

        self.module.register_comm_hook(self.state, listening)

    def listen(self, noise: NoiseScale, scale: float, batch: float) -> None:
        """Give `noise` the squared norm of this worker's own gradient, times `scale`, in the next
        backward pass; `batch` is the workers' mean number of samples."""
        self._noise, self._noise_scale, self._noise_batch, self._heard = noise, scale, batch, []

    def _tell(self) -> None:
        assert self._noise is not None
        self._noise.small(torch.stack(self._heard).sum() * self._noise_scale, self._noise_batch)
        self._noise = None

    def state_dict(self) -> dict[str, Tensor]:
        """This worker's own memory (error feedback); empty where there is none."""
        return {} if self.state is None else self.state.state_dict()

    def restore(self, states: list[dict[str, Tensor]]) -> None:
        """From what every worker had saved, perhaps another number of them."""
        if self.state is not None and states:
            from thresher.distributed.exchange import redistribute

            self.state.load_state_dict(redistribute(states, self.group.rank, self.group.world))

    def close(self) -> None:
        if self.state is not None:
            self.state.close()

    def before_update(self) -> None:
        """Between the backward pass and the optimiser."""

    def after_update(self) -> None:
        """After the optimiser's step."""
