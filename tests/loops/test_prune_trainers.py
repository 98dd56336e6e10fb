"""Pruned loaders in the trainers of others, which tests import: Lightning takes 2.4 CPU seconds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_prune import BATCH, EPOCHS, N, Numbers, epoch
from torch import Tensor
from torch.utils.data import DataLoader

from thresher.data.sampler import EpochSampler
from thresher.training.prune import PrunedLoader, prune


@pytest.mark.slow
def test_lightning_trains_whole_epochs_and_validates_after_each() -> None:
    import pytorch_lightning as lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen, self.validated = torch.nn.Linear(1, 1), [0], 0
            full = DataLoader(Numbers(), BATCH, shuffle=True)
            self.loader = prune(full, "random:0.4", epochs=EPOCHS)

        def train_dataloader(self) -> PrunedLoader:
            return self.loader

        def val_dataloader(self) -> DataLoader[int]:
            return DataLoader(Numbers(), N)

        def on_train_batch_start(self, *_: Any) -> None:
            self.trainer.val_check_batch = len(self.loader)

        def training_step(self, batch: Tensor, *_: Any) -> Tensor:
            self.seen[-1] += len(batch)
            return self.loader.loss(self.layer(batch.float()[:, None])[:, 0])

        def validation_step(self, *_: Any) -> None:
            self.validated += 1

        def on_train_epoch_end(self) -> None:
            self.seen.append(0)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    module = Module()
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(module)
    expected = prune(DataLoader(Numbers(), BATCH), "random:0.4", epochs=EPOCHS)
    assert module.seen[:-1] == [len(epoch(expected)) for _ in range(EPOCHS)]
    assert module.seen[EPOCHS - 1] == N
    assert module.validated == EPOCHS


@pytest.mark.slow
@pytest.mark.parametrize(("method", "stores"), [("infobatch", True), ("random:0.4", False)])
def test_lightning_resumes_at_the_end_of_an_epoch(
    method: str, stores: bool, tmp_path: Path
) -> None:
    """Without a state, epochs were counted from 0 again, so that the last one was pruned."""
    import pytorch_lightning as lightning

    class Resumed(lightning.LightningModule):
        """Notes the samples of each epoch; stores the loader as the guide says."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: dict[int, list[int]] = {}
            sampler: Any = EpochSampler(np.arange(N), seed=2)
            self.loader = prune(
                DataLoader(Numbers(), BATCH, sampler=sampler), method, epochs=EPOCHS
            )

        def train_dataloader(self) -> PrunedLoader:
            return self.loader

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            if stores:
                checkpoint["loader"] = self.loader.state_dict()

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            if stores:
                self.loader.load_state_dict(checkpoint["loader"])

        def training_step(self, batch: Tensor, *_: Any) -> Tensor:
            self.seen.setdefault(self.current_epoch, []).extend(batch.tolist())
            return self.loader.loss(self.layer(batch.float()[:, None])[:, 0] * 0 + batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    def fit(epochs: int, resume: Path | None = None) -> Resumed:
        module = Resumed()
        trainer = lightning.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
        )
        trainer.fit(module, ckpt_path=resume)
        trainer.save_checkpoint(tmp_path / f"{epochs}.ckpt")
        return module

    whole, _ = fit(EPOCHS), fit(3)
    resumed = fit(EPOCHS, tmp_path / "3.ckpt")
    assert resumed.seen == {number: whole.seen[number] for number in range(3, EPOCHS)}
    assert len(resumed.seen[3]) < len(resumed.seen[EPOCHS - 1]) == N
    if stores:
        assert resumed.loader.left_out == whole.loader.left_out


def test_batches_cannot_be_skipped() -> None:
    """A loader of the rest of the batches would not know the weights of its samples."""
    from accelerate import skip_first_batches

    with pytest.raises(AttributeError, match="a pruned loader cannot skip batches"):
        skip_first_batches(prune(DataLoader(Numbers(), BATCH), epochs=EPOCHS), 1)
