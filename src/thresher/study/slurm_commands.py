"""Run SLURM's commands, and wait while its controller restarts or is overloaded.

Jobs do not depend on the controller while they run, so a study need not end because one command
failed. A failure before the first answer is an error at once: SLURM is not set up here.
"""

import contextlib
import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from thresher.errors import MissingDependencyError, NotFoundError, ThresherError

logger = logging.getLogger(__name__)

MOST_SECONDS = 24 * 3600.0
"""How long a command may fail before the study ends."""
FIRST_REMINDER_S = 60.0
"""Time until the first reminder that a command still fails; the others follow at twice the time."""
_UNREACHABLE = re.compile(
    r"unable to contact|timed out|temporarily|standby|connection failure|authentication error"
    r"|(send|receive) failure|zero bytes|try again",
    re.IGNORECASE,
)
_SUBMIT_LIMIT = re.compile(r"\w+SubmitJob\w*")
"""SLURM's names of limits to the number of submitted jobs, such as QOSMaxSubmitJobPerUserLimit."""

_OF_EVERY_CLUSTER = frozenset({"SLURM_CLUSTERS", "SLURM_CONF", "SLURM_JWT"})
"""Variables that are not those of a job, although they begin like them."""
_SET_HERE = frozenset(
    f"SBATCH_{name}" for name in ("ARRAY_INX", "JOB_NAME", "SIGNAL", "TIMELIMIT", "WAIT")
)


@dataclass
class _Outage:
    since: float
    remind_at: float


class SlurmCommands:
    """Commands of SLURM that are repeated, `pause` seconds apart, until they work."""

    def __init__(self, pause: float) -> None:
        self.pause = max(1.0, pause)
        self.any_answer = False
        self.outages: dict[str, _Outage] = {}

    def output(self, *words: str, may_fail: bool = False) -> str:
        """Return what a command prints, once it works, or fails although it reached SLURM."""
        while True:
            done = call(*words)
            if not done.returncode or (may_fail and not unreachable(done.stderr)):
                self.answered(words[0])
                return done.stdout
            self.wait(words[0], done.stderr)

    def answered(self, command: str) -> None:
        """Record that a command worked."""
        self.any_answer = True
        if outage := self.outages.pop(command, None):
            logger.warning("%s works again after %s", command, _duration(outage.since))

    def wait(self, command: str, errors: str) -> None:
        """Wait after a command failed, with a message at first and from time to time.

        Raises a ThresherError if it has failed for `MOST_SECONDS`, or if none has ever worked.
        """
        reason = one_line(errors)
        if not self.any_answer:
            raise ThresherError(f"{command} failed: {reason}", "check that SLURM is running")
        now = time.monotonic()
        outage = self.outages.setdefault(command, _Outage(now, now + FIRST_REMINDER_S))
        if now - outage.since >= MOST_SECONDS:
            raise ThresherError(
                f"{command} has been failing for {_duration(outage.since)}: {reason}",
                "run the study again when SLURM answers",
            )
        if now == outage.since:
            logger.warning(
                "%s failed: %s. Trying again for up to %.0f hours; jobs are not affected",
                command,
                reason,
                MOST_SECONDS / 3600,
            )
        elif now >= outage.remind_at:
            logger.warning(
                "%s has been failing for %s: %s", command, _duration(outage.since), reason
            )
            outage.remind_at = now + (now - outage.since)
        time.sleep(self.pause)


def check_commands() -> None:
    """Check that SLURM's commands and submitit are installed."""
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        if shutil.which(name) is None:
            raise NotFoundError(
                f"SLURM command {name} not found",
                'run on a login node of the cluster, or set kind = "local"',
            )
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "SLURM needs the package submitit", "pip install 'thresher-ml[slurm]'"
        ) from None


def call(*words: str) -> "subprocess.CompletedProcess[str]":
    """Run a command once, without the user's defaults for squeue.

    Some, such as SQUEUE_STATES, hide jobs, which would then seem to have vanished.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SQUEUE_")}
    return subprocess.run(words, capture_output=True, text=True, env=environment)


@contextlib.contextmanager
def clean_submission(options: Iterable[str]) -> Iterator[None]:
    """Hide variables that would change a job that the block submits with these sbatch options.

    sbatch prefers SBATCH_PARTITION, say, to the partition of a script. Inside of a job, the new one
    would inherit that job's variables, such as SLURM_ARRAY_JOB_ID.
    """
    hidden = _SET_HERE.union(f"SBATCH_{option.upper()}" for option in options) & os.environ.keys()
    if "SLURM_JOB_ID" in os.environ:
        inherited = {k for k in os.environ if k.startswith(("SLURM_", "SLURMD_", "SRUN_"))}
        hidden |= inherited - _OF_EVERY_CLUSTER
    values = {name: os.environ.pop(name) for name in hidden}
    try:
        yield
    finally:
        os.environ.update(values)


def unreachable(errors: str) -> bool:
    """Return whether a command failed because the controller could not be reached."""
    return _UNREACHABLE.search(errors) is not None


def submit_limit(errors: str) -> str | None:
    """Return SLURM's name of the limit of submitted jobs that sbatch has met, if it has."""
    match = _SUBMIT_LIMIT.search(errors)
    return match.group() if match else None


def one_line(errors: str) -> str:
    """Return the error messages of a command in one line, without its name before each."""
    lines = (re.sub(r"^\w+: error: ", "", line.strip()) for line in errors.splitlines())
    return "; ".join(filter(None, lines))


def _duration(since: float) -> str:
    seconds = time.monotonic() - since
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.0f} hours"
