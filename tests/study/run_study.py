"""Run a study in a process of its own: `python run_study.py FILE FOLDER`."""

import sys

from thresher.study.study import Study

if __name__ == "__main__":
    Study.load(sys.argv[1], sys.argv[2]).run()
