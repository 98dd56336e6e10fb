"""The command line: one word per stage, flags from dataclasses, results on standard output.

`COMMANDS` is the whole map. A command is a function of one configuration dataclass that returns
an `Outcome`; its module is imported only when that command is called, so that `thresher --help`
answers at once and does not load torch.
"""

from thresher.cli.commands import COMMANDS, Command, Outcome
from thresher.cli.main import main, run

__all__ = ["COMMANDS", "Command", "Outcome", "main", "run"]
