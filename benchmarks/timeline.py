"""Where a command spends its time, thread by thread, seen every five milliseconds.

    python -m benchmarks.timeline OUT -m thresher select network …

Python's profiler makes imports in several threads twice as slow; looking at the threads from
another one does not. Each line of OUT is what a thread did for 20 ms or more: the last line of our
own code, or the package that it was in.
"""

import runpy
import sys
import threading
import time
from types import FrameType
from typing import TextIO

INTERVAL = 0.005
SHORTEST = 0.02


def doing(frame: FrameType | None) -> str:
    """Return our innermost line, or the package of the innermost frame."""
    package = ""
    while frame is not None:
        name = frame.f_globals.get("__name__", "?")
        package = package or name.partition(".")[0]
        if name.startswith("thresher"):
            return f"{name}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return package


def watch(out: TextIO, begun: float) -> None:
    """Write what each thread does, whenever it changes."""
    me = threading.get_ident()
    now_at: dict[int, tuple[float, str]] = {}
    while True:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        now = time.perf_counter() - begun
        frames = sys._current_frames()
        for ident in {*now_at, *frames} - {me}:
            what = doing(frames[ident]) if ident in frames else ""
            since, before = now_at.get(ident, (now, what))
            if what != before or ident not in frames:
                if now - since >= SHORTEST:
                    name = names.get(ident, "ended")
                    out.write(f"{since:6.2f} {now - since:5.2f} s  {name:14} {before}\n")
                    out.flush()
                since = now
            now_at[ident] = (since, what)
            if ident not in frames:
                del now_at[ident]
        time.sleep(INTERVAL)


def main() -> None:
    if len(sys.argv) < 4 or sys.argv[2] != "-m":
        print("usage: python -m benchmarks.timeline OUT -m MODULE ARGUMENTS", file=sys.stderr)
        raise SystemExit(2)
    path, _, module, *arguments = sys.argv[1:]
    out = open(path, "w")  # noqa: SIM115 - the command may end this process at any time
    threading.Thread(target=watch, args=(out, time.perf_counter()), daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
