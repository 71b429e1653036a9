"""A headless Chromium, driven over its debugging pipe with nothing but the standard library."""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from test_service_process import Served

from patience import PATIENCE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


def open_page(served: Served, browser: Browser) -> None:
    """Go to the link that the service printed."""
    found = re.search(r"http://\S+", served.hear("serving"))
    assert found is not None
    browser.open(found[0])
    browser.wait_for("document.querySelector('#link').textContent === 'live'")


class Browser:
    """Drives one tab at a time. ``problems`` holds what the page's policy forbade and what its script threw."""

    def __init__(self, *, dark: bool = False, width: int = 1400, height: int = 900) -> None:
        assert CHROMIUM is not None
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_child, self._out = os.pipe()
        self._in, from_child = os.pipe()
        # Chromium reads descriptor 3 and writes 4. They may be taken here, so a step between puts the pipes there. It
        # also gives up what the superuser may do to be served before others (PR_CAPBSET_DROP, CAP_SYS_NICE): six
        # browsers that draw keep the services of their tests from one core for minutes.
        place = (
            f"import os, sys; os.dup2({to_child}, 103); os.dup2({from_child}, 104); os.dup2(103, 3); os.dup2(104, 4); "
            "import ctypes; ctypes.CDLL(None).prctl(24, 23, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"
        )
        command = [
            sys.executable, "-c", place, CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu",
            "--disable-dev-shm-usage", "--remote-debugging-pipe", f"--user-data-dir={self._folder.name}",
            f"--window-size={width},{height}", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(command, pass_fds=(to_child, from_child), stderr=subprocess.DEVNULL)
        os.close(to_child)
        os.close(from_child)
        self._ids = itertools.count(1)
        self._buffer = b""
        self._session: str | None = None
        self.problems: list[str] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        self._attach(page["targetId"])
        # What moves is drawn sixty times a second, for as long as a run works.
        wishes = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        self.call("Emulation.setEmulatedMedia", features=features)
        self._height = height
        self.resize(width)

    def resize(self, width: int) -> None:
        """Make the window so wide."""
        size = {"width": width, "height": self._height}
        self.call("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=width < 600)

    def _attach(self, target: str) -> None:
        self._session = None
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.call(f"{domain}.enable")

    def new_tab(self) -> None:
        """Open another tab and go on with that one."""
        self._attach(self.call("Target.createTarget", url="about:blank")["targetId"])

    @property
    def tab(self) -> str | None:
        """The tab that is driven; set it to drive another that was driven before."""
        return self._session

    @tab.setter
    def tab(self, tab: str | None) -> None:
        self._session = tab
        self.call("Page.bringToFront")

    def close_tab(self) -> None:
        """Close the tab that is driven; set ``tab`` to go on with another."""
        self.call("Page.close")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its answer; events are looked through on the way."""
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self._look_at(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = os.read(self._in, 2**20)
            if not piece:
                raise RuntimeError("the browser is gone")
            self._buffer += piece
        first, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(first))

    def _look_at(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"])[:500])
        if event.get("method") == "Audits.issueAdded" and "ContentSecurityPolicy" in params["issue"]["code"]:
            self.problems.append(json.dumps(params["issue"])[:500])

    def open(self, address: str) -> None:
        """Go to an address."""
        self.call("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """Wait until an expression is true, and return it. While the page is not there, it is not."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if value := self.run(f"(() => {{ try {{ return {script} }} catch {{ return false }} }})()"):
                return value
            time.sleep(0.05)
        raise AssertionError(f"it did not come: {script}; the page says: {self.run('document.body.innerText')}")

    def screenshot(self, path: Path) -> None:
        """Write a picture of the page."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        self._process.wait(PATIENCE)
        os.close(self._out)
        os.close(self._in)
        self._folder.cleanup()
