"""Train on what a selection keeps with the Trainer of Hugging Face transformers.

python examples/loops/hf_trainer.py digits keep.parquet
"""

import sys

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from thresher import Pack, Selection


class Classifier(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(width, classes))

    def forward(self, images, labels):
        logits = self.model(images)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def train(data, selection, epochs=1):
    """Return the ids of the samples that this process saw."""
    pack = Pack.open(data)
    dataset = pack.dataset()
    kept = Selection.load(selection).apply(dataset)  # a Subset, with the labels that people gave
    seen = []

    def collate(rows):
        seen.extend(dataset.ids[kept.indices[row]] for row in rows)
        images, labels = zip(*(kept[row] for row in rows), strict=True)
        return {"images": torch.stack(images), "labels": torch.tensor(labels)}

    arguments = TrainingArguments(
        "hf-run",
        num_train_epochs=epochs,
        per_device_train_batch_size=32,
        remove_unused_columns=False,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
    )
    model = Classifier(dataset[0][0].numel(), len(pack.classes))
    trainer = Trainer(model, arguments, data_collator=collate, train_dataset=range(len(kept)))
    trainer.train()
    return seen


if __name__ == "__main__":
    print(len(train(*sys.argv[1:3])), "samples")
