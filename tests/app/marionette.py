"""Drive Debian's Firefox over its own protocol, which Playwright does not speak."""

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PREFERENCES = {
    "marionette.port": 0,
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.homepage": "about:blank",
    "browser.aboutwelcome.enabled": False,
    "app.update.enabled": False,
    "app.normandy.enabled": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "toolkit.telemetry.server": "",
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "services.settings.server": "data:,",
    "extensions.update.enabled": False,
}
START_S = 120.0


class Firefox:
    """A running Firefox with one window."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.stream = connection.makefile("rb")
        self.number = 0
        self._receive()  # a greeting
        self.send("NewSession", capabilities={"alwaysMatch": {}})

    def send(self, command: str, **parameters: Any) -> Any:
        """Send a WebDriver command and return its answer."""
        self.number += 1
        body = json.dumps([0, self.number, f"WebDriver:{command}", parameters]).encode()
        self.connection.sendall(b"%d:%s" % (len(body), body))
        _, number, error, result = self._receive()
        assert number == self.number
        assert error is None, error
        return result

    def open(self, url: str) -> None:
        self.send("Navigate", url=url)

    def evaluate(self, expression: str, *arguments: object) -> Any:
        """Return the value of a JavaScript expression; `arguments` are its arguments."""
        script = f"return ({expression});"
        return self.send("ExecuteScript", script=script, args=list(arguments))["value"]

    def wait_for(self, expression: str, seconds: float = 30.0) -> Any:
        """Wait until a JavaScript expression is true; return its value."""
        end = time.monotonic() + seconds
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < end, f"{expression} did not become true"
            time.sleep(0.05)
        return value

    def press(self, *keys: str) -> None:
        """Press and release keys, one after the other."""
        steps = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.send("PerformActions", actions=[{"type": "key", "id": "keys", "actions": steps}])

    def _receive(self) -> Any:
        size = b""
        while (digit := self.stream.read(1)) != b":":
            assert digit, "Firefox closed the connection"
            size += digit
        return json.loads(self.stream.read(int(size)))


@contextmanager
def running_firefox(program: str, profile: Path) -> Iterator[Firefox]:
    """Start a headless Firefox with a fresh profile in an empty folder, and stop it."""
    lines = [
        f"user_pref({json.dumps(name)}, {json.dumps(value)});"
        for name, value in PREFERENCES.items()
    ]
    (profile / "user.js").write_text("\n".join(lines))
    command = [program, "--headless", "--no-remote", "--marionette", "--profile", str(profile)]
    environment = {**os.environ, "HOME": str(profile), "MOZ_CRASHREPORTER_DISABLE": "1"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        with socket.create_connection(("127.0.0.1", _port(process, profile)), 60) as connection:
            yield Firefox(connection)
    finally:
        process.terminate()
        process.wait(30)


def _port(process: "subprocess.Popen[bytes]", profile: Path) -> int:
    """Return the port that Firefox listens on, which it writes into its profile."""
    file, end = profile / "MarionetteActivePort", time.monotonic() + START_S
    while not (file.exists() and file.read_text().strip()):
        assert process.poll() is None, f"Firefox ended with code {process.returncode}"
        assert time.monotonic() < end, "Firefox did not start"
        time.sleep(0.05)
    return int(file.read_text())


def find_firefox() -> str | None:
    """Return the path of Debian's Firefox, if it is installed."""
    return shutil.which("firefox-esr")
