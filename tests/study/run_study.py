"""Run a study in a process of its own: `python run_study.py FILE FOLDER [LEVEL OF LOGGING]`."""

import logging
import sys

from thresher.study.study import Study

if __name__ == "__main__":
    if sys.argv[3:]:
        logging.basicConfig(level=sys.argv[3])
    Study.load(sys.argv[1], sys.argv[2]).run()
