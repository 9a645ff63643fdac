"""Headless Chromium, driven over its own pipes: pages at some width, in light or dark, with what they log."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One open page."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive, self._count, self._session = send, receive, 0, ""
        self._rest = b""
        self.complaints: list[str] = []
        """Exceptions and errors that the page logged."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command of the DevTools protocol."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while (reply := self._next()).get("id") != self._count:
            self._note(reply)
        assert "error" not in reply, reply["error"]
        return dict(reply["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._receive, 1 << 20)
            assert more, "the browser is gone"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method", ""), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"]["exception"].get("description", "exception"))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.complaints.append(str(params["args"]))
        elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("file:", "data:")):
            self.complaints.append(f"asks for {params['request']['url']}")

    def open(self, page: Path, width: int, height: int = 900, dark: bool = False) -> None:
        """Show a page and wait until it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=page.resolve().as_uri())
        while self.evaluate("document.readyState") != "complete":
            pass

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own, which ends with the block."""
    assert CHROMIUM
    (of_browser, send), (receive, to_us) = os.pipe(), os.pipe()
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage")
    # Chromium reads commands from its file descriptor 3 and writes to 4.
    command = f'exec 3<&{of_browser} 4>&{to_us}; exec "$@"'
    argv = ["bash", "-c", command, "bash", CHROMIUM, *options, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
    process = subprocess.Popen(argv, pass_fds=(of_browser, to_us), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(of_browser)
    os.close(to_us)
    try:
        opened = Browser(send, receive)
        yield opened
        opened._session = ""
        opened.call("Browser.close")
    finally:
        os.close(send)
        os.close(receive)
        process.kill()
        process.wait()
