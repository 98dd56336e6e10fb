"""`python -m thresher.cli.worker ORDER ANSWER`: one worker of `thresher train --workers N`."""

import sys

if __name__ == "__main__":
    from thresher.cli.train import run
    from thresher.training.launched import work

    work(sys.argv[1:], run)
