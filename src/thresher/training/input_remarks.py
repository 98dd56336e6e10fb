"""What a run says about its input: that the device waits for it, and which images are slow."""

import logging

import numpy as np
import torch

from thresher.data.device_crop_reader import missing_package
from thresher.data.images import PILLOW
from thresher.data.loader import Loader
from thresher.distributed.group import Group
from thresher.errors import counted
from thresher.training.gpu_streams import MOST_QUEUES, QUEUES, few_queues

ENOUGH = 0.05
"""Share of the first epoch, after its first batch came, above which a run says that it waits."""
logger = logging.getLogger(__name__)


def warn_of_waiting(share: float, loader: Loader) -> None:
    """Say what to do if the device waits for images."""
    if share <= ENOUGH:
        return
    missing = missing_package()
    by_cpu = loader.device.type == "cuda" and loader.device_crops is None
    gpu = f", install {missing} to decode on the GPU" if by_cpu and missing else ""
    if loader.device_crops is not None and few_queues():
        gpu = f", set {QUEUES}={MOST_QUEUES} before this process first uses the GPU"
    logger.warning(
        f"{100 * share:.0f} % of the time was spent waiting for images: use more cores{gpu}, or "
        "pack the images at the size that you train on with `thresher data pack --resize`"
    )


def slow_decoded(loader: Loader, group: Group, decoder: str | None) -> int | None:
    """Count the images that the fast decoder could not read, on all workers, and say so."""
    if loader.crop is None or decoder == PILLOW:
        return None
    marks = torch.from_numpy(loader.slow_images.astype(np.float32)).to(group.device)
    count = int((group.all_reduce_sum(marks) > 0).sum())
    if count and group.first:
        logger.info(
            f"{counted(count, 'image was', 'images were')} decoded by Pillow because {decoder} "
            f"cannot read {'it' if count == 1 else 'them'}: other formats than JPEG, other colours "
            "than RGB, turned by EXIF, or damaged"
        )
    return count
