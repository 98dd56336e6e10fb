"""Run several trainings one after another in this process (a worker of the tests' groups)."""

import json
import sys
from pathlib import Path

from thresher.training.config import TrainConfig
from thresher.training.train import train

if __name__ == "__main__":
    for options in json.loads(Path(sys.argv[1]).read_text()):
        train(TrainConfig.from_dict(options), quiet=True)
