"""Start and stop a real SLURM of two nodes on this machine, in its own folder.

munged, slurmctld and two slurmd run in the foreground as children, with their own key, socket,
ports and state. It must run as root (slurmd starts jobs as the user who submitted them).
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
CONF = """
ClusterName=bed
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,batch_sched_delay=0,sched_min_interval=0
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=5
MaxArraySize=2
JobRequeue=1
SlurmdTimeout=300
MessageTimeout=30
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=2 RealMemory=1000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=2 RealMemory=1000
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Return why the test bed cannot run here; "" if it can."""
    lacking = [name for name in PROGRAMS if _program(name) is None]
    if lacking:
        return f"{', '.join(lacking)} not installed (Debian: slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "slurmd must be started by root"


class SlurmBed:
    """A context manager; `environment` holds the variables that SLURM's commands need."""

    def __init__(self, root: Path, extra: str = "") -> None:
        self.root, self.conf = root, CONF + extra
        self.processes: list[subprocess.Popen[bytes]] = []
        self.environment = {"SLURM_CONF": str(root / "slurm.conf")}

    def __enter__(self) -> "SlurmBed":
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *trouble: object) -> None:
        self.stop()

    def _start(self) -> None:
        munge = self.root / "munge"
        for folder in (munge, self.root / "state", self.root / "spool-n1", self.root / "spool-n2"):
            folder.mkdir(parents=True, mode=0o755)
        key = munge / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        controller, first, second = free_ports(3)
        (self.root / "slurm.conf").write_text(
            self.conf.format(
                root=self.root,
                host=socket.gethostname(),
                controller=controller,
                first=first,
                second=second,
            )
        )
        # --force: accept the permissions of the folders above a temporary one.
        self._run(
            "munged", "--foreground", "--force", "--num-threads=1", f"--key-file={key}",
            f"--socket={munge}/socket", f"--pid-file={munge}/pid", f"--log-file={munge}/log",
            f"--seed-file={munge}/seed",
        )  # fmt: skip
        self._wait(lambda: (munge / "socket").exists(), "munged")
        self._run("slurmctld", "-D", "-i")
        self._run("slurmd", "-D", "-N", "n1")
        self._run("slurmd", "-D", "-N", "n2")
        self._wait(lambda: self.command("sinfo", "-h", "-o", "%T") == "idle", "SLURM")

    def _run(self, name: str, *arguments: str) -> None:
        program = _program(name)
        assert program is not None
        log = open(self.root / f"{name}-{len(self.processes)}.log", "wb")  # noqa: SIM115
        environment = {**os.environ, **self.environment}
        self.processes.append(
            subprocess.Popen(
                [program, *arguments], stdout=log, stderr=log, env=environment,
                start_new_session=True,
            )
        )  # fmt: skip
        log.close()

    def stop_controller(self) -> None:
        """End slurmctld; jobs go on."""
        controller = self.processes.pop(1)
        controller.terminate()
        controller.wait()

    def start_controller(self) -> None:
        """Start slurmctld again with the state that it had."""
        self._run("slurmctld", "-D")
        self.processes.insert(1, self.processes.pop())
        self._wait(lambda: "UP" in self.command("scontrol", "ping"), "slurmctld")

    def command(self, *arguments: str) -> str:
        """Return the output of a SLURM command; "" if it fails."""
        done = subprocess.run(
            arguments, capture_output=True, text=True, env={**os.environ, **self.environment}
        )
        return done.stdout.strip()

    def _wait(self, ready: object, what: str, seconds: float = 60) -> None:
        assert callable(ready)
        limit = time.monotonic() + seconds
        while not ready():
            ended = [p for p in self.processes if p.poll() is not None]
            if ended or time.monotonic() > limit:
                logs = "\n".join(
                    f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}"
                    for log in self.root.glob("*.log")
                )
                raise RuntimeError(f"{what} did not start\n{logs}")
            time.sleep(0.2)

    def stop(self) -> None:
        """Cancel every job, then end the daemons in reverse order and the processes they left."""
        if len(self.processes) > 1:
            jobs = self.command("squeue", "-h", "-o", "%A").split()
            if jobs:
                self.command("scancel", *jobs)
        limit = time.monotonic() + 10
        while len(self.processes) > 1 and self.steps() and time.monotonic() < limit:
            time.sleep(0.2)
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self.processes):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in self.steps():
            # It would wait for a slurmd that has ended.
            os.kill(pid, signal.SIGKILL)
        self.processes.clear()

    def steps(self) -> list[int]:
        """Return the ids of the slurmstepd processes of this bed; they outlive slurmd by design."""
        ours = f"SLURM_CONF={self.environment['SLURM_CONF']}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if (folder / "comm").read_text().strip() == "slurmstepd":
                    environment = (folder / "environ").read_bytes().split(b"\0")
                    found += [int(folder.name)] if ours in environment else []
            except OSError:
                continue  # it has ended
        return found


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
