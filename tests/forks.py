"""Real processes without the seconds that torch takes to load.

Python's fork server imports torch once for all workers of pytest. Importing this module changes
`subprocess` so that `python -m thresher…` and `python FILE`, of the tests or examples, are forked
from there in tens of milliseconds, whoever starts them: the command of a test, the workers of its
training, the trials of its study, on a host of a test bed (`ip netns exec HOST …`), too. Process
id, session, files, signals, network namespace and exit code are real. The workers of pytest-xdist
are forked as well: alone, each takes 3 CPU seconds more to load what the server has loaded.

Where the start of an interpreter is what a test is about, or what /proc shows of a process, mark
the test `fresh`; the variable `FRESH` in the environment of a command does the same.
"""

import atexit
import contextlib
import ctypes
import dataclasses
import faulthandler
import fcntl
import gc
import inspect
import multiprocessing
import os
import pickle
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

FRESH = "THRESHER_TEST_FRESH"
"""Environment variable: start new interpreters, here and in all processes that inherit it."""
QUICK_TINY = "THRESHER_TEST_QUICK_TINY"
"""Environment variable: "tiny" is the network of `quick_network`."""
SESSION = "THRESHER_TEST_SESSION"
"""Environment variable: the id of the process that runs the tests, in all that it starts."""
TESTS = os.path.dirname(__file__)
FOLDERS = (f"{TESTS}/", f"{os.path.dirname(TESTS)}/examples/")
"""Files in them are forked, too."""
MODULES = ("thresher", "torch.distributed.run", "mkdocs", "ipykernel_launcher")
"""What `python -m` forks, besides modules of Thresher. MkDocs loads all commands for the site, and
the notebooks load torch."""
WORKER = ["-c", "import sys;exec(eval(sys.stdin.readline()))"]
"""How execnet starts a worker of pytest-xdist."""

FORKS = multiprocessing.get_context("forkserver")
# Python has one fork server per process, which imports what the last caller asked for: so it is
# set up here and nowhere else.
FORKS.set_forkserver_preload(["preloaded"])
SERVER: Any = forkserver._forkserver
if forkserver.get_inherited_fds() is not None:
    # This process is a child of the server and uses it, too, instead of starting one.
    SERVER.ensure_running = lambda: None
else:
    _start_server = SERVER.ensure_running

    def _ensure_running() -> None:
        """Start the server where it finds the tests' modules: Python 3.11 drops `sys.path`."""
        given = {name: os.environ.get(name) for name in ("PYTHONPATH", SESSION)}
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [given["PYTHONPATH"], TESTS]))
        os.environ[SESSION] = _NO_SESSION
        try:
            _start_server()
        finally:
            for name, value in given.items():
                os.environ.pop(name)
                os.environ.update({} if value is None else {name: value})

    SERVER.ensure_running = _ensure_running

_NO_SESSION = 20 * "-"
"""What the environment of the server says; each fork writes its session there."""
_RESERVED_FD = 200
"""The fork server's own file descriptors are from here on, so that a command can have any other."""
_CLONE_NEWNET = 0x40000000
_ON_HOST = ["ip", "netns", "exec"]
"""What a command on a host of the test bed begins with; the name of the host follows."""
_started: set[int] = set()
"""The forks that this process has started and not waited for."""


def server() -> tuple[str, int]:
    """Return address and process id of the server, which is started if there is none."""
    SERVER.ensure_running()
    return SERVER._forkserver_address, SERVER._forkserver_pid


def use_server(address: str, pid: int) -> None:
    """Use a server that another process has started and keeps until this one has ended."""
    SERVER._forkserver_address, SERVER._forkserver_pid = address, pid
    # Forks inherit what keeps their server: here, the end of a pipe that nobody reads.
    _, SERVER._forkserver_alive_fd = os.pipe()
    SERVER.ensure_running = resource_tracker.ensure_running


def started() -> set[int]:
    """Return the forks that this process has started, and other processes of multiprocessing."""
    return _started | {child.pid for child in multiprocessing.active_children() if child.pid}


@dataclasses.dataclass
class _Command:
    """A command that a child of the fork server runs: `_bootstrap` is called there."""

    words: list[str]
    """A module or a file, and its arguments."""
    environment: dict[str, str]
    folder: str
    fds: list[int]
    """The file descriptors of the command, in the order in which they were sent."""
    new_session: bool
    process_group: int
    parent: int
    """The process that started the command."""
    network: str
    """The network namespace to enter; "" for that of the server."""

    def _bootstrap(self, parent_ends: int) -> int:
        """Run the command and return its exit code."""
        _write_session(self.environment.get(SESSION, ""))
        gc.freeze()  # a collection would copy every page of the server's objects
        atexit._clear()  # what is registered belongs to the server
        try:
            self._enter(parent_ends)
            try:
                self._run()
                code = 0
            finally:
                threading._shutdown()  # type: ignore[attr-defined]
                atexit._run_exitfuncs()
        except SystemExit as error:
            code = _exit_code(error)
        except BaseException:
            traceback.print_exc()
            code = 1
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        return code

    def _enter(self, parent_ends: int) -> None:
        """Become the process that the caller of Popen asked for."""
        tracker: Any = resource_tracker._resource_tracker
        own = [SERVER._forkserver_alive_fd, tracker._fd, parent_ends, *SERVER._inherited_fds]
        moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _RESERVED_FD) for fd in own]
        for fd in [*own, sys.stdin.fileno()]:  # the server reads another file than 0
            os.close(fd)
        SERVER._forkserver_alive_fd, tracker._fd, ends, *sent = moved
        for fd, number in zip(sent, self.fds, strict=True):
            os.dup2(fd, number)
            os.close(fd)
        if self.new_session:
            os.setsid()
        if self.process_group >= 0:
            # The group of a study's command is in another session, which no fork can join: such a
            # command ends with its parent.
            with contextlib.suppress(PermissionError):
                os.setpgid(0, self.process_group)
        if self.network:
            with open(f"/run/netns/{self.network}") as file:
                if ctypes.CDLL(None).setns(file.fileno(), _CLONE_NEWNET):
                    raise OSError(f"the network namespace {self.network} cannot be entered")
        os.getppid = lambda: self.parent
        threading.Thread(target=_die_with_parent, args=(ends,), daemon=True).start()
        threads = os.environ.get("OMP_NUM_THREADS")
        os.environ.clear()
        os.environ.update(self.environment)
        if self.environment.get("OMP_NUM_THREADS", threads) != threads:
            import torch

            torch.set_num_threads(int(self.environment["OMP_NUM_THREADS"]))
        if QUICK_TINY in self.environment:
            sys.modules["quick_network"].use()
        os.chdir(self.folder)
        for number, (name, mode) in enumerate([("stdin", "r"), ("stdout", "w"), ("stderr", "w")]):
            stream: Any = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            if name == "stderr":
                stream.reconfigure(line_buffering=True, errors="backslashreplace")
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        if self.environment.get("PYTHONFAULTHANDLER"):
            faulthandler.enable()
        # The folders of a new interpreter: not those that pytest has added for the tests.
        installed = [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix))]
        added = [p for p in self.environment.get("PYTHONPATH", "").split(os.pathsep) if p]
        sys.path[:] = [self.folder, *added, *installed]

    def _run(self) -> None:
        sys.argv[:] = self.words
        with warnings.catch_warnings():
            # The module that runs was imported by the fork server.
            warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
            if self.words == WORKER:
                sys.argv[:] = WORKER[:1]
                if "preloaded" in sys.modules:
                    warnings.filters[:] = sys.modules["preloaded"].WARNINGS  # type: ignore[index]
                exec(WORKER[1], vars(sys.modules["__main__"]))
            elif self.words[0].endswith(".py"):
                sys.path[0] = os.path.dirname(self.words[0])
                runpy.run_path(self.words[0], run_name="__main__")
            else:
                runpy.run_module(self.words[0], run_name="__main__", alter_sys=True)


def _write_session(session: str) -> None:
    """Let /proc show `session` in the environment of this process, which is that of the server."""
    # "pid (name) state ...": start and end of the environment are the fields 50 and 51.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = map(int, fields[47:49])
    at = ctypes.string_at(start, end - start).index(_NO_SESSION.encode())
    value = session.encode().ljust(len(_NO_SESSION), b"\0")
    ctypes.memmove(start + at, value, len(value))


def forks_in(folder: Path) -> list[int]:
    """Return the forks that work in `folder`, whichever process under test started them.

    A worker of pytest is a fork, too, and may work there, but belongs to the session of the process
    that started it: only its tests' forks belong to its own.
    """
    ids = []
    server, session = SERVER._forkserver_pid, f"{SESSION}={os.getpid()}".encode()
    for pid in Path(f"/proc/{server}/task/{server}/children").read_text().split():
        with contextlib.suppress(OSError):  # it has ended
            if os.readlink(f"/proc/{pid}/cwd") == str(folder):
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                ids += [int(pid)] if session in environment else []
    return ids


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    sys.stderr.write(f"{error.code}\n")
    return 1


def _die_with_parent(ends: int) -> None:
    """Do what the parent-death signal does for a child of the parent itself."""
    select.select([ends], [], [])
    os.kill(os.getpid(), signal.SIGKILL)


# ---- subprocess.Popen ---------------------------------------------------------------------------

_POPEN: Any = subprocess.Popen
_execute_plain, _poll_plain, _try_wait_plain = (
    _POPEN._execute_child,
    _POPEN._internal_poll,
    _POPEN._try_wait,
)
_ARGUMENTS = inspect.signature(_execute_plain)


def _host(call: dict[str, Any]) -> str:
    """Return the network namespace that a command is started in; "" for that of this process."""
    words = call["args"]
    return str(words[3]) if isinstance(words, list) and words[:3] == _ON_HOST else ""


def _words(call: dict[str, Any]) -> list[str]:
    """Return the module and arguments of a command that is to be forked; of others, nothing."""
    environment = os.environ if call["env"] is None else call["env"]
    given = call["args"][4:] if _host(call) else call["args"]
    program, *words = given if isinstance(given, list | tuple) and given else [""]
    if words[:1] == ["-u"]:
        words = words[1:]
    before = getattr(call["preexec_fn"], "__name__", None)
    special = before not in (None, "die_with_parent") or call["shell"]
    if FRESH in environment or special or program != sys.executable:
        return []
    if words == WORKER:
        forked = True
    elif words[:1] == ["-m"]:
        words = words[1:]
        forked = words[0] in MODULES or words[0].startswith("thresher.")
    else:
        file = os.path.join(call["cwd"] or os.getcwd(), str(words[0])) if words else ""
        forked = file.endswith(".py") and file.startswith(FOLDERS)
    return [str(word) for word in words] if forked else []


def _execute_child(self: Any, *arguments: Any) -> None:
    call = _ARGUMENTS.bind(self, *arguments).arguments
    words = _words(call)
    if not words:
        _execute_plain(self, *arguments)
        return
    given = [call["p2cread"], call["c2pwrite"], call["errwrite"]]
    streams = [number if fd == -1 else fd for number, fd in enumerate(given)]
    command = _Command(
        words=words,
        environment=dict(os.environ if call["env"] is None else call["env"]),
        folder=os.path.abspath(call["cwd"] or "."),
        fds=[0, 1, 2, *call["pass_fds"]],
        new_session=call["start_new_session"],
        process_group=call["process_group"],
        parent=os.getpid(),
        network=_host(call),
    )
    # What a child of the fork server reads: how to find modules, then an object to call.
    text = pickle.dumps({"sys_path": [TESTS, *sys.path]}) + pickle.dumps(command)
    status, alive = SERVER.connect_to_new_process([*streams, *call["pass_fds"]])
    self.pid = forkserver.read_signed(status)
    with open(alive, "wb", closefd=False) as file:
        file.write(text)
    if command.new_session:
        _wait_for_session(self.pid)
    # While `alive` is open here, the child knows that its parent lives.
    self._forked = (status, alive)
    _started.add(self.pid)
    self._child_created = True
    ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
    self._close_pipe_fds(*(call[name] for name in ends))


def _wait_for_session(pid: int) -> None:
    """Wait until a fork leads its session: who kills its group now would kill the server's."""
    with contextlib.suppress(ProcessLookupError):  # it has ended
        while os.getsid(pid) != pid:
            time.sleep(0.001)


def _try_wait(self: Any, flags: int) -> tuple[int, int]:
    """Return the process id and status as os.waitpid does."""
    if not hasattr(self, "_forked"):
        result: tuple[int, int] = _try_wait_plain(self, flags)
        return result
    status, alive = self._forked
    if not select.select([status], [], [], 0 if flags & os.WNOHANG else None)[0]:
        return 0, 0
    code = forkserver.read_signed(status)
    _started.discard(self.pid)
    os.close(status)
    os.close(alive)
    return self.pid, code << 8 if code >= 0 else -code


def _internal_poll(self: Any, *arguments: Any, **named: Any) -> int | None:
    code: int | None
    if not hasattr(self, "_forked"):
        code = _poll_plain(self, *arguments, **named)
        return code
    if self.returncode is None and self._waitpid_lock.acquire(False):
        try:
            if self.returncode is None:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
        finally:
            self._waitpid_lock.release()
    code = self.returncode
    return code


_POPEN._execute_child = _execute_child
_POPEN._try_wait = _try_wait
_POPEN._internal_poll = _internal_poll
