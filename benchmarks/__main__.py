"""`make bench`: run every benchmark that needs no arguments, each in its own process."""

import subprocess
import sys
from pathlib import Path

USAGE = 2
"""Exit code of a program that lacks an argument."""


def main() -> None:
    here = Path(__file__).parent
    programs = [path for path in sorted(here.glob("*.py")) if not path.stem.startswith("_")]
    failed: list[str] = []
    left_out: list[str] = []
    for program in programs:
        if "__main__" not in program.read_text():  # a module that others use
            continue
        print(f"== {program.stem}", flush=True)
        code = subprocess.run([sys.executable, "-m", f"benchmarks.{program.stem}"]).returncode
        if code:
            (left_out if code == USAGE else failed).append(program.stem)
    if left_out:
        print(f"left out, since they need arguments: {', '.join(left_out)}")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
