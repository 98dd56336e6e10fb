"""Train on what a selection keeps, read from the tar files of a WebDataset.

    python examples/loops/web_dataset.py keep.parquet train-0.tar train-1.tar

Under torch.distributed, every process reads its own share of the tar files.
"""

import sys

import torch
from torch import nn

from thresher import Selection


def pixels(sample):
    """Return image, label and key of a decoded sample."""
    return sample["png"], sample["cls"], sample["__key__"]


def train(selection, tars, epochs=1):
    """Return the keys that this process saw in the last epoch."""
    import webdataset as wds

    kept = Selection.load(selection)
    dataset = (
        wds.WebDataset(list(tars), shardshuffle=False, nodesplitter=wds.split_by_node)
        .select(kept.keeps)  # before decoding, so that dropped images cost no time
        .decode("torchrgb")
        .map(pixels)
        .batched(32)
    )
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(int(kept.labels.max()) + 1))
    optimizer = None
    for _ in range(epochs):
        seen = []
        for images, labels, keys in dataset:
            logits = model(torch.as_tensor(images))
            optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
            loss = nn.functional.cross_entropy(logits, torch.as_tensor(labels))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += keys
    return seen


if __name__ == "__main__":
    print(len(train(sys.argv[1], sys.argv[2:])), "samples per epoch")
