"""A headless Chromium, driven over its debugging protocol: open, wait for text, click what says so, take a picture."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

PROGRAM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
_VISIBLE = """
(text, tag) => [...document.querySelectorAll(tag || 'a, button, [role=tab], li, span, div, h1, h2, p, td, text')]
    .filter(e => (e.innerText || e.textContent || '').trim().includes(text) && e.getClientRects().length)
    .sort((a, b) => (a.innerText || '').length - (b.innerText || '').length)[0]
"""


class Page:
    """One tab."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self.clicks = 0
        self.call("Page.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=1400, height=1000, deviceScaleFactor=1, mobile=False)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("id") == self._number:
                assert "error" not in message, message["error"]
                return message["result"]

    def evaluate(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def text(self) -> str:
        return self.evaluate("document.body ? document.body.innerText : ''") or ""

    def wait_for(self, condition: str, what: str, patience_s: float = 60) -> Any:
        """The value of a JavaScript expression once it is true."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            value = self.evaluate(condition)
            if value:
                return value
            time.sleep(0.2)
        raise AssertionError(f"{what} did not appear; the page says:\n{self.text()[:3000]}")

    def wait_for_text(self, text: str) -> None:
        self.wait_for(f"!!document.body && document.body.innerText.includes({json.dumps(text)})", repr(text))

    def click(self, text: str, tag: str = "") -> None:
        """Click the smallest visible element that says so, with a real mouse event."""
        find = f"({_VISIBLE})({json.dumps(text)}, {json.dumps(tag)})"
        self.wait_for(f"!!{find}", repr(text))
        self.evaluate(f"{find}.scrollIntoView({{block: 'center'}})")
        middle = (
            f"(() => {{ const r = {find}.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2] }})()"
        )
        place = None
        for _ in range(40):  # until the page has stopped moving
            before, place = place, self.evaluate(middle)
            if place == before:
                break
            time.sleep(0.25)
        assert place is not None
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)
        self.clicks += 1

    def picture(self, path: Path) -> None:
        taken = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def chromium() -> Generator[Page]:
    assert PROGRAM is not None
    with tempfile.TemporaryDirectory(prefix="chrome-", ignore_cleanup_errors=True) as directory:
        process = subprocess.Popen(
            [
                PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                "--hide-scrollbars", f"--user-data-dir={directory}", "--remote-debugging-port=0", "about:blank",
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield from _pages(Path(directory))
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _pages(directory: Path) -> Generator[Page]:
    active = directory / "DevToolsActivePort"
    deadline = time.monotonic() + 60
    while not (active.exists() and active.read_text().strip()):
        assert time.monotonic() < deadline, "Chromium does not start"
        time.sleep(0.1)
    port = active.read_text().splitlines()[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
        target = next(each for each in json.loads(answer.read()) if each["type"] == "page")
    with connect(target["webSocketDebuggerUrl"], max_size=None) as socket:
        yield Page(socket)
