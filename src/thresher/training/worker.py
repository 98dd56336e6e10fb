"""`python -m thresher.training.worker ORDER ANSWER`: one worker of a run that `train` started."""

import sys

from thresher.training.launched import work
from thresher.training.loop import train

if __name__ == "__main__":
    work(sys.argv[1:], train)
