"""Signals that stop a process are never lost, disturb no clean-up and leave nothing behind."""

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from thresher import stopping
from thresher.stopping import Stop, asked_to_stop, interruptible, keyboard_interrupt

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
DROPPED = "ignore::pytest.PytestUnraisableExceptionWarning"


class _Object:
    pass


@pytest.fixture(autouse=True)
def _nothing_changes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Repeat quickly; fail a test after which a handler or a thread is another."""
    monkeypatch.setattr(stopping, "REPEAT_S", 0.05)
    before = [signal.getsignal(number) for number in SIGNALS], len(sys._current_frames())
    yield
    assert ([signal.getsignal(number) for number in SIGNALS], len(sys._current_frames())) == before


def _send_in_weakref_callback(number: int) -> None:
    thing = _Object()
    reference = weakref.ref(thing, lambda _: signal.raise_signal(number))
    del thing, reference


def _send_in_del(number: int) -> None:
    class Ended:
        def __del__(self) -> None:
            signal.raise_signal(number)

    Ended()


def _send_where_errors_are_dropped(number: int) -> None:
    with contextlib.suppress(BaseException):
        signal.raise_signal(number)


def _send_to_a_cycle(number: int) -> None:
    """The exception stays alive, though nobody handles it."""
    kept: list[object] = []
    try:
        signal.raise_signal(number)
    except BaseException as error:
        kept += [error, kept]


@pytest.mark.filterwarnings(DROPPED)
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(
    "send",
    [_send_in_weakref_callback, _send_in_del, _send_where_errors_are_dropped, _send_to_a_cycle],
)
def test_an_interrupt_that_is_dropped_is_raised_again(
    send: Callable[[int], None], number: signal.Signals
) -> None:
    def work() -> None:
        with interruptible():
            send(number)
            end = time.monotonic() + 20
            while time.monotonic() < end:
                time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt) as stopped:
        work()
    assert type(stopped.value) is KeyboardInterrupt, "Python ends a script by SIGINT only for it"
    assert stopped.value.args == (() if number == signal.SIGINT else (number.name,))


def test_what_a_library_makes_of_an_interrupt_is_known() -> None:
    assert asked_to_stop() is None
    with interruptible():
        assert asked_to_stop() is None
        with pytest.raises(KeyboardInterrupt, match="SIGTERM") as stopped:
            signal.raise_signal(signal.SIGTERM)
        assert asked_to_stop() is stopped.value
    assert asked_to_stop() is None


MAKES_ANOTHER_ERROR = """
import os, signal
def broken(classes):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except KeyboardInterrupt:
        raise TypeError("could not determine the shape") from None
"""


def test_a_command_whose_library_makes_another_error_of_an_interrupt_is_interrupted(
    tmp_path: Path, thresher: Callable[..., "subprocess.CompletedProcess[str]"]
) -> None:
    """As torch did in reading weights: `embed` said that the file was truncated."""
    (tmp_path / "networks.py").write_text(MAKES_ANOTHER_ERROR)
    words = ("--data", "digits", "--model", "networks:broken", "--out", tmp_path / "run")
    done = thresher("train", *words, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert done.stderr == "thresher: interrupted\n"


@pytest.mark.filterwarnings(DROPPED)
def test_a_call_that_waits_for_ever_is_interrupted() -> None:
    def work() -> None:
        with interruptible():
            _send_in_weakref_callback(signal.SIGTERM)
            child.wait()

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        with pytest.raises(KeyboardInterrupt):
            work()
        child.kill()


def test_clean_up_is_not_disturbed() -> None:
    done = []

    def generate() -> Iterator[int]:
        try:
            yield from itertools.count()
        finally:
            time.sleep(0.2)
            done.append("generator")

    def work() -> None:
        numbers = generate()
        next(numbers)
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            for number in (*SIGNALS, *SIGNALS):
                signal.raise_signal(number)
            with contextlib.suppress(ValueError):
                raise ValueError
            time.sleep(0.2)
            done.append("finally")

    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), interruptible():
        work()
    assert done == ["finally", "generator"]


def test_any_exception_can_be_raised_and_turned_into_another() -> None:
    def work() -> None:
        with Stop(OSError, signal.SIGTERM):
            try:
                signal.raise_signal(signal.SIGTERM)
            except OSError:
                time.sleep(0.2)
                raise ValueError("stopped") from None

    with pytest.raises(ValueError, match="stopped"):
        work()


def test_handlers_of_others_and_ignored_signals_stay() -> None:
    received = []

    def own(number: int, frame: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.signal(number, own) for number in SIGNALS[:2]}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible(), Stop(keyboard_interrupt, signal.SIGHUP):
            for number in SIGNALS:
                signal.raise_signal(number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert received == SIGNALS[:2]


def test_a_block_in_another_thread_leaves_signals_alone() -> None:
    def work() -> None:
        with interruptible(), Stop(keyboard_interrupt, signal.SIGTERM):
            handlers.append(signal.getsignal(signal.SIGTERM))

    handlers: list[object] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [signal.SIG_DFL]


def test_no_signal_is_lost_where_a_block_begins_or_ends() -> None:
    """One that arrives when the block has ended is for the handler from before."""
    heard = threading.Event()
    over = threading.Event()

    def outer(number: int, frame: FrameType | None) -> None:
        heard.set()

    def send() -> None:
        moment = random.Random(0)
        for _ in range(200):
            time.sleep(moment.uniform(0, 1e-4))
            heard.clear()
            os.kill(os.getpid(), signal.SIGTERM)
            if not heard.wait(20):
                break
        over.set()

    before, interval = signal.signal(signal.SIGTERM, outer), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        while not over.is_set():
            try:
                with Stop(keyboard_interrupt, signal.SIGTERM):
                    pass
            except KeyboardInterrupt:
                heard.set()
            assert signal.getsignal(signal.SIGTERM) is outer
    finally:
        sender.join()
        sys.setswitchinterval(interval)
        signal.signal(signal.SIGTERM, before)
    assert heard.is_set()


def test_a_signal_that_waits_for_torch_is_not_lost_with_the_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stopping, "IMPORT_REPEAT_S", 60)
    received = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    module = compile("signal.raise_signal(signal.SIGTERM)", "module of torch", "exec")
    try:
        with Stop(keyboard_interrupt, signal.SIGTERM):
            exec(module, {"__name__": "torch.some.module", "signal": signal})
            assert received == []
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]


FORK = """
import os, signal, sys, time
from thresher.stopping import interruptible
with interruptible():
    pid = os.fork()
    if not pid:
        time.sleep(60)
        os._exit(0)
    time.sleep(0.05)
    os.kill(pid, signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_fork_ends_as_without_the_block() -> None:
    """Such as a worker of multiprocessing that its pool ends."""
    command = [sys.executable, "-c", FORK]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{-signal.SIGTERM}\n", "")


# ---- the command line ---------------------------------------------------------------------------

SOURCE = """
import os, signal, time, weakref
class Slow:
    name, classes, image_shape = "slow", ["a"], (4, 4, 1)
    def __init__(self, where, name=None):
        self.where = where
    def key(self):
        return "1"
    def chunks(self):
        return ["0"]
    def read(self, chunk):
        thing = Slow("")
        send = lambda _: os.kill(os.getpid(), int(self.where))
        reference = weakref.ref(thing, send)
        del thing
        time.sleep(60)
        yield
"""


@pytest.mark.parametrize("number", SIGNALS)
def test_a_command_ends_though_python_dropped_the_interrupt(tmp_path: Path, number: int) -> None:
    (tmp_path / "slow.py").write_text(SOURCE)
    words = ["data", "pack", str(int(number)), "out", "--format", "slow:Slow", "--processes", "1"]
    command = [sys.executable, "-m", "thresher", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert done.returncode == 128 + number
    assert done.stderr == "thresher: interrupted\n"
    assert not list(tmp_path.rglob("*.tmp"))


def _run_with(tmp_path: Path, start: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in a new interpreter that begins with the code `start`."""
    (tmp_path / "sitecustomize.py").write_text(f"import os, signal, sys, threading\n{start}")
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    command = [sys.executable, "-m", "thresher", *words]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50)


@pytest.mark.fresh  # a fork has imported them
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("module", ["thresher.cli.commands", "thresher.cli.data"])
def test_a_signal_during_imports_gives_no_traceback(
    tmp_path: Path, module: str, number: int
) -> None:
    start = f"""
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {int(number)})
sys.meta_path.insert(0, Finder())
"""
    done = _run_with(tmp_path, start, "data", "info", "digits")
    assert (done.returncode, done.stderr) == (128 + number, "thresher: interrupted\n")


@pytest.mark.slow  # imports torch
@pytest.mark.fresh
@pytest.mark.parametrize(
    ("called", "number"),
    [("_c10d_init", signal.SIGINT), ("_multiprocessing_init", signal.SIGTERM)],
)
def test_a_signal_while_torch_is_imported_does_not_abort(
    tmp_path: Path, called: str, number: int
) -> None:
    """These functions of torch call Python; an exception there ends in std::terminate."""
    start = f"""
inside = []
def profile(frame, event, argument):
    if event == "c_call" and argument.__name__ == {called!r}:
        inside.append(True)
    elif event == "call" and inside:
        sys.setprofile(None)
        signal.raise_signal({int(number)})
sys.setprofile(profile)
"""
    words = ("--data", "digits", "--model", "tiny", "--epochs", "1000", "--device", "cpu")
    done = _run_with(tmp_path, start, "train", *words, "--out", str(tmp_path / "run"))
    assert (done.returncode, done.stderr) == (128 + number, "thresher: interrupted\n")


@pytest.mark.fresh
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_after_the_work_gives_no_traceback(tmp_path: Path, number: int) -> None:
    start = f"""
shutdown = threading._shutdown
def interrupted():
    os.kill(os.getpid(), {int(number)})
    shutdown()
threading._shutdown = interrupted
"""
    done = _run_with(tmp_path, start, "--version")
    assert (done.returncode, done.stderr) == (-number, "")
    assert done.stdout.startswith("thresher ")


def test_a_closed_terminal_ends_a_command(tmp_path: Path) -> None:
    """SIGHUP arrives, and standard error can no longer be written to."""
    (tmp_path / "slow.py").write_text(SOURCE.replace("int(self.where)", "0"))
    read, write = os.openpty()
    words = ["data", "pack", "0", "out", "--format", "slow:Slow", "--processes", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "thresher", *words],
        cwd=tmp_path,
        stdin=write,
        stdout=write,
        stderr=write,
        start_new_session=True,
    )
    os.close(write)
    end = time.monotonic() + 50
    while not (tmp_path / ".out.partial" / "plan.json").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    os.close(read)
    process.send_signal(signal.SIGHUP)
    assert process.wait(50) == 129
