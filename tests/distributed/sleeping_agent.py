"""Start two workers that sleep, in new interpreters (an agent for the tests to kill)."""

import os
import sys

from forks import FRESH
from thresher.distributed.worker import run_in_group

if __name__ == "__main__":
    os.environ[FRESH] = "1"
    run_in_group("test_worker:sleep", sys.argv[1], workers=2)
