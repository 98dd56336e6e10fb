"""Train one run of a study: here, in a group of workers here, or as one worker of a group."""

import sys
from typing import Any

from thresher.errors import ThresherError, nearest
from thresher.training.config import TrainConfig, check


def train(config: TrainConfig) -> dict[str, Any]:
    """What result.json holds; `dynamic` becomes the pruner that it names."""
    from thresher.distributed.group import place

    check(config)
    pruner = make_pruner(config.dynamic)
    if config.workers > 1 and place().world == 1:
        from thresher.training.launched import train_in_group

        # Each worker makes its own pruner: this module is what they run.
        return train_in_group(config, worker="thresher.study.training")
    from thresher.training.loop import train as train_here

    return train_here(config, pruner)


def make_pruner(name: str) -> Any:
    """What prunes while training; None for `none`."""
    if name == "none":
        return None
    from thresher.select.dynamic import DynamicRandom, InfoBatch

    known = {"infobatch": InfoBatch, "dynamic-random": DynamicRandom}
    if name not in known:
        raise ThresherError(f'there is no dynamic pruner "{name}"', nearest(name, known))
    return known[name]()


if __name__ == "__main__":
    from thresher.training.launched import work

    work(sys.argv[1:], train)
