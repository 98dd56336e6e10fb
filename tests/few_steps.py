"""The command of a trial that is killed: fifteen short steps, resumed from the last one.

`python -I -S few_steps.py OUT SEED [RATE]` writes the steps so far to OUT/state, and at the end
OUT/result.json with `steps` = 100 SEED + 10 RATE + 15. It starts in milliseconds.
"""

import json
import os
import sys
import time

SCRIPT = os.path.abspath(__file__)
STEPS = 15


def main(out: str, seed: str, rate: str = "0") -> None:
    state = os.path.join(out, "state")
    step = 0
    if os.path.exists(state):
        with open(state) as file:
            step = int(file.read())
    while step < STEPS:
        step += 1
        time.sleep(0.1)
        with open(state + ".new", "w") as file:
            file.write(str(step))
        os.replace(state + ".new", state)
    with open(os.path.join(out, "result.json"), "w") as file:
        json.dump({"steps": 100 * int(seed) + 10 * int(rate) + step}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
