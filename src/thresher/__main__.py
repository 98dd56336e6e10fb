"""`python -m thresher`, the form that torchrun and srun start, and the script `thresher`."""

import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Before and after the block below, nothing has to be cleaned up: no traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from thresher.stopping import interrupted, interruptible


def main() -> None:
    """Run the command line in a process of its own, which signals can end at any moment."""
    sys.unraisablehook = _hide_interrupts
    try:
        with interruptible():
            from thresher.cli import run  # takes longer than Python's own start

            run()
    except KeyboardInterrupt as error:
        raise SystemExit(interrupted(error)) from None


def _hide_interrupts(error: "sys.UnraisableHookArgs") -> None:
    """Print nothing for an interrupt that Python drops, as it is raised again."""
    if error.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(error)


if __name__ == "__main__":
    main()
