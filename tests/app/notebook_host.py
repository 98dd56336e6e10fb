"""A real Jupyter kernel, and a page of Chromium that holds its widget as a notebook would."""

import base64
import json
import time
from collections.abc import Callable
from queue import Empty
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jupyter_client.blocking.client import BlockingKernelClient
    from playwright.sync_api import Browser, Frame, Page

ADDRESS = "http://notebook.invalid/"
VIEW = "application/vnd.jupyter.widget-view+json"
# What anywidget gives to a widget: its state, and messages both ways.
HOST = """<!doctype html><title>notebook</title><div id="cell"></div><script type="module">
import widget from "./widget.js";
const listeners = new Set();
const text = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
window.fromKernel = (content, bodies) => {
  const bytes = bodies.map((body) => Uint8Array.from(atob(body), (c) => c.charCodeAt(0)));
  const views = bytes.map((one) => new DataView(one.buffer));
  for (const listener of listeners) listener(content, views);
};
const model = {
  get: (name) => HEIGHT,
  on: (name, listener) => listeners.add(listener),
  off: (name, listener) => listeners.delete(listener),
  send: (content, callbacks, buffers) => window.toKernel(content, buffers.map(text)),
};
window.remove = widget.render({ model, el: document.getElementById("cell") });
</script>"""


class Kernel:
    """Runs code and carries the messages of widgets."""

    def __init__(self, client: "BlockingKernelClient") -> None:
        self.client = client
        self.comms: dict[str, dict[str, Any]] = {}
        """State of each widget by its id."""
        self.messages: list[dict[str, Any]] = []
        """Messages of widgets that were not taken yet."""
        self.printed = ""

    def run(self, code: str) -> dict[str, Any]:
        """Run a cell and return the data of its result."""
        request = self.client.execute(code)
        result: dict[str, Any] = {}
        while True:
            message = self.receive(60)
            assert message is not None, "the kernel does not answer"
            kind, content = message["msg_type"], message["content"]
            assert kind != "error", "\n".join(content["traceback"])
            if message["parent_header"].get("msg_id") != request:
                continue
            if kind == "execute_result":
                result = content["data"]
            if kind == "status" and content["execution_state"] == "idle":
                return result

    def receive(self, timeout: float) -> dict[str, Any] | None:
        """Take the next message of the kernel, and keep what belongs to widgets."""
        try:
            message: dict[str, Any] = self.client.get_iopub_msg(timeout=timeout)
        except Empty:
            return None
        content = message["content"]
        if message["msg_type"] == "comm_open":
            self.comms[content["comm_id"]] = content["data"]["state"]
        elif message["msg_type"] == "comm_msg" and content["data"]["method"] == "custom":
            body = {"content": content["data"]["content"], "bodies": message["buffers"]}
            self.messages.append(body)
        elif message["msg_type"] == "stream":
            self.printed += content["text"]
        return message

    def send(self, comm: str, content: Any, bodies: list[bytes]) -> None:
        """Send a message of a widget, as the browser does."""
        data = {"comm_id": comm, "data": {"method": "custom", "content": content}}
        message = self.client.session.msg("comm_msg", data)
        self.client.session.send(self.client.shell_channel.socket, message, buffers=bodies)

    def ask(self, comm: str, path: str, method: str = "GET", body: bytes = b"") -> dict[str, Any]:
        """Send one request and return its answer."""
        content = {"id": path, "path": path, "method": method, "type": "application/json"}
        self.send(comm, content, [body])
        end = time.monotonic() + 30
        while time.monotonic() < end:
            self.receive(0.2)
            for message in self.messages:
                if message["content"].get("id") == path:
                    self.messages.remove(message)
                    return message
        raise AssertionError(f"no answer to {path}")


class NotebookPage:
    """A window with the widget in it; `until` carries messages while it waits."""

    def __init__(self, kernel: Kernel, comm: str, browser: "Browser") -> None:
        self.kernel, self.comm = kernel, comm
        self.requests: list[str] = []
        self.sent: list[str] = []
        """Ids of the messages to the kernel."""
        self.page: Page = browser.new_page(viewport={"width": 1280, "height": 800})
        state = kernel.comms[comm]
        files = {
            ADDRESS: ("text/html", HOST.replace("HEIGHT", str(state["height"]))),
            f"{ADDRESS}widget.js": ("text/javascript", str(state["_esm"])),
        }

        def answer(route: Any) -> None:
            self.requests.append(route.request.url)
            kind, text = files.get(route.request.url, ("text/plain", ""))
            route.fulfill(status=200 if text else 404, content_type=kind, body=text)

        self.page.route("**/*", answer)
        self.page.expose_function("toKernel", self._to_kernel)
        self.page.goto(ADDRESS)

    @property
    def frame(self) -> "Frame":
        return self.page.frames[-1]

    def until(self, check: Callable[[], bool], what: str) -> None:
        """Carry messages until `check` holds."""
        end = time.monotonic() + 60
        while not check():
            assert time.monotonic() < end, f"waited for: {what}"
            self.kernel.receive(0.02)
            for message in self.kernel.messages:
                bodies = [base64.b64encode(body).decode() for body in message["bodies"]]
                self.page.evaluate(
                    "([content, bodies]) => fromKernel(content, bodies)",
                    [message["content"], bodies],
                )
            self.kernel.messages.clear()
            self.page.wait_for_timeout(10)

    def shows(self, selector: str) -> bool:
        """Return whether the frame holds an element."""
        return len(self.page.frames) > 1 and self.frame.locator(selector).count() > 0

    def count(self, kind: str) -> int:
        """Return a number of the page's header."""
        return int(self.frame.locator(f".part.{kind}").get_attribute("data-count") or -1)

    def _to_kernel(self, content: Any, bodies: list[str]) -> None:
        json.dumps(content)  # a notebook can send nothing else
        self.sent.append(content["id"])
        self.kernel.send(self.comm, content, [base64.b64decode(body) for body in bodies])
