"""`python -m thresher.train.worker ORDER ANSWER`: one worker of a run that `train` started."""

import sys

from thresher.train.launched import work
from thresher.train.loop import train

if __name__ == "__main__":
    work(sys.argv[1:], train)
