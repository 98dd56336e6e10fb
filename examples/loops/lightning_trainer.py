"""Train on what a selection keeps with Lightning.

python examples/loops/lightning_trainer.py digits keep.parquet
"""

import sys

import pytorch_lightning as lightning
import torch
from torch import nn
from torch.utils.data import DataLoader

from thresher import Pack, Selection


class Classifier(lightning.LightningModule):
    def __init__(self, pack, selection):
        super().__init__()
        self.pack, self.selection, self.seen = pack, selection, []
        self.model = nn.Sequential(nn.Flatten(), nn.LazyLinear(len(pack.classes)))
        self.model(torch.zeros(1, *pack.dataset()[0][0].shape))

    def train_dataloader(self):
        # Called after the processes have joined, so the sampler knows its rank.
        dataset = self.pack.dataset()
        rows = list(zip(dataset, dataset.ids, strict=True))
        return DataLoader(rows, batch_size=32, sampler=self.selection.sampler(dataset))

    def on_train_epoch_start(self):
        self.seen = []

    def training_step(self, batch, _):
        (images, labels), ids = batch
        self.seen += ids
        return nn.functional.cross_entropy(self.model(images), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(data, selection, epochs=1):
    """Return the ids that this process saw in the last epoch."""
    module = Classifier(Pack.open(data), Selection.load(selection))
    # The sampler divides the samples itself; Lightning calls its set_epoch.
    trainer = lightning.Trainer(
        max_epochs=epochs, use_distributed_sampler=False, accelerator="cpu", logger=False
    )
    trainer.fit(module)
    return module.seen


if __name__ == "__main__":
    print(len(train(*sys.argv[1:3], epochs=3)), "samples per epoch")
