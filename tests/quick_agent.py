"""Import this to start groups of workers faster: torch's agent without its slowest line.

For the name of an event that nobody records, the agent reads the source of every module on its
stack: a second for a process that has loaded as much as the tests have. The agent also signals
workers that have just ended. Its own children would be there until it looks at them; the forks of
the tests are gone.
"""

import contextlib
import signal

from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.elastic.rendezvous import dynamic_rendezvous


def _name(depth: int = 2) -> str:
    return "a method"


assert hasattr(dynamic_rendezvous, "get_method_name"), "torch has changed: remove this file"
dynamic_rendezvous.get_method_name = _name

_close = SubprocessHandler.close


def _close_if_there(self: SubprocessHandler, death_sig: signal.Signals | None = None) -> None:
    with contextlib.suppress(ProcessLookupError):
        _close(self, death_sig)


SubprocessHandler.close = _close_if_there  # type: ignore[method-assign]
