"""Read the queue of SLURM: which jobs of this user are in it, and in which state."""

import re

from thresher.study.slurm_commands import SlurmCommands

Queue = dict[tuple[str, int], str]
"""State of each queued job, perhaps with a reason, by (job name, index in its array)."""
_STUCK = re.compile(r"PENDING \(.*([Hh]eld|Hold|PartitionTimeLimit|BadConstraints|NeverSatisfied)")


def read_queue(commands: SlurmCommands) -> Queue:
    """Return the jobs of this user in the queue."""
    words = ("squeue", "--noheader", "--me", "--array", "--format=%j|%K|%T (%r)")
    queue = {}
    for line in commands.output(*words).splitlines():
        if line.count("|") < 2:
            continue  # the name of a cluster, as squeue begins if SLURM_CLUSTERS is set
        name, index, state = line.strip().rsplit("|", 2)  # other jobs may have any name
        queue[name, int(index) if index.isdigit() else 0] = state.removesuffix(" (None)")
    return queue


def is_stuck(state: str) -> bool:
    """Return whether a job waits for something that does not happen by itself."""
    return _STUCK.match(state) is not None


def shown(state: str) -> str:
    """Return a state as people see it, such as `pending (PartitionTimeLimit)`."""
    word, *reason = state.split(" ", 1)
    return " ".join([word.lower(), *reason])


def largest_array(commands: SlurmCommands) -> int:
    """Return how many jobs an array may have on this cluster."""
    config = commands.output("scontrol", "show", "config", may_fail=True)
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", config, re.MULTILINE)
    # Indices are below MaxArraySize, which is 1001 by default and 0 if there are no arrays.
    return max(1, int(match.group(1))) if match else 1001
