"""Train on what a selection keeps in a plain torch loop, on one process or under torchrun.

python examples/loops/plain_torch.py digits keep.parquet
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from thresher import Pack, Selection


class WithIds(Dataset):
    """Adds the id to each item; a loop that does not log ids needs only `pack.dataset()`."""

    def __init__(self, dataset):
        self.dataset, self.ids = dataset, dataset.ids

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, row):
        return (*self.dataset[row], self.ids[row])


def train(data, selection, epochs=1):
    """Return the ids that this process saw in the last epoch."""
    pack = Pack.open(data)
    dataset = WithIds(pack.dataset())
    sampler = Selection.load(selection).sampler(dataset, seed=0)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    width = dataset[0][0].numel()
    model = nn.Sequential(nn.Flatten(), nn.Linear(width, len(pack.classes)))
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        seen = []
        for images, labels, ids in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += ids
    return seen


if __name__ == "__main__":
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    print(len(train(*sys.argv[1:3], epochs=3)), "samples per epoch")
