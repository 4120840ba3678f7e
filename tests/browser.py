"""A real browser for tests: headless Chromium, driven over the DevTools protocol through two pipes."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# A page is there in a tenth of a second; the machine may be busy with much else.
PATIENCE_SECONDS = 60.0
# It stays at home: nothing is looked up, updated or reported while a test runs.
_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)  # fmt: skip
# The events of a page: its console, its uncaught errors, its requests.
_DOMAINS = ("Page", "Runtime", "Log", "Network", "Audits")


def find_browser() -> str | None:
    """Return the path of a Chromium on PATH, None where there is none."""
    return next((found for found in map(shutil.which, BROWSERS) if found), None)


class Browser:
    """Chromium in a process of its own, with an empty profile. Leave it by `close`."""

    def __init__(self, program: str, folder: Path) -> None:
        """Start it; `folder` takes the profile and the browser's output."""
        ends = os.pipe() + os.pipe()
        # The protocol's two descriptors have the numbers 3 and 4. A shell puts them there, since nothing of Python's
        # may run after a fork with threads around; so none of the pipes' own may be 3 or 4.
        to_browser, self._writing, self._reading, from_browser = (
            fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends
        )
        for end in ends:
            os.close(end)
        command = ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "bash", program, *_OPTIONS]
        folder.mkdir(parents=True, exist_ok=True)
        self._output = folder / "browser.log"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, f"--user-data-dir={folder / 'profile'}", "about:blank"],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=(to_browser, from_browser),
            )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._number = 0
        self._rest = b""
        self._pages: dict[str, Page] = {}

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        """Open a file from the disk, as a double click would, and wait until it is loaded.

        Args:
            path: The file.
            width: Of the window, in CSS pixels.
            height: Of the window, in CSS pixels.
            dark: Whether the person prefers a dark color scheme.
        """
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, target)
        for domain in _DOMAINS:
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.call("Page.navigate", url=path.resolve().as_uri())
        until = time.monotonic() + PATIENCE_SECONDS
        while not page.is_loaded:
            self._receive(until)
        # Runs in a loaded page: waits for two frames, and then writes to the log.
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")
        return page

    def call(self, method: str, session: str | None = None, /, **options: object) -> dict[str, Any]:
        """Send one command of the protocol; return its result."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": options}
        if session:
            message["sessionId"] = session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            answer = self._receive(until)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer}"
                return dict(answer["result"])

    def _receive(self, until: float) -> Mapping[str, Any]:
        """Return the next message; one about a page has been noted there."""
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reading], [], [], max(0.0, until - time.monotonic()))
            received = os.read(self._reading, 1 << 20) if ready else b""
            assert received, f"the browser does not answer; it printed: {self._output.read_text(errors='replace')}"
            self._rest += received
        first, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        if message.get("sessionId") in self._pages and "method" in message:
            self._pages[message["sessionId"]].note(message["method"], message["params"])
        return message

    def close(self) -> None:
        """End it."""
        os.close(self._writing)  # then it ends by itself
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._reading)


@dataclass(slots=True)
class Page:
    """A page in the browser, and the browser's events of it.

    Attributes:
        errors: Errors and warnings of its console, uncaught exceptions, requests that failed or were refused.
        requests: The addresses that it asked for, its own first.
        is_loaded: Whether it and all that belongs to it is there.
    """

    _browser: Browser
    _session: str
    _target: str
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    is_loaded: bool = False

    def call(self, method: str, **options: object) -> dict[str, Any]:
        """Send one command of the protocol to this page; return its result."""
        return self._browser.call(method, self._session, **options)

    def note(self, event: str, told: Mapping[str, Any]) -> None:
        """Take down an event."""
        if event == "Page.loadEventFired":
            self.is_loaded = True
        elif event == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif event == "Network.loadingFailed":
            self.errors.append(f"request failed: {told['errorText']} {told.get('blockedReason', '')}")
        elif event == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.errors.append(f"exception: {details.get('exception', {}).get('description', details['text'])}")
        elif event == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.errors.append(f"console: {[a.get('value', a.get('description')) for a in told['args']]}")
        elif event == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"log: {told['entry']['text']} {told['entry'].get('url', '')}")
        elif event == "Audits.issueAdded":
            self.errors.append(f"issue: {told['issue']['code']} {json.dumps(told['issue']['details'])}")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression (a promise's when it comes), which must be JSON-able."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, f"{expression}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def screenshot(self, path: Path | None = None) -> bytes:
        """Return the whole page as a PNG file's bytes; write it to `path` as well if that is given."""
        image = base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])
        if path is not None:
            path.write_bytes(image)
        return image

    def close(self) -> None:
        """Leave the page."""
        self._browser.call("Target.closeTarget", targetId=self._target)
