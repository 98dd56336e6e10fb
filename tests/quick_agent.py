"""Import this to start groups of workers faster: torch's agent without its slowest line.

For the name of an event that nobody records, the agent reads the source of every module on its
stack: a second for a process that has loaded as much as the tests have.
"""

from torch.distributed.elastic.rendezvous import dynamic_rendezvous


def _name(depth: int = 2) -> str:
    return "a method"


assert hasattr(dynamic_rendezvous, "get_method_name"), "torch has changed: remove this file"
dynamic_rendezvous.get_method_name = _name
