"""Start a process of this file, which prints its id; both sleep."""

import os
import subprocess
import sys
import time

if __name__ == "__main__":
    if sys.argv[1:]:
        print(os.getpid(), flush=True)
    else:
        subprocess.Popen([sys.executable, __file__, "child"])
    time.sleep(60)
