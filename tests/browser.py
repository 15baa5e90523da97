"""A real browser, driven over a pipe in its own protocol: pages are loaded, keys pressed and pictures taken."""

import base64
import fcntl
import io
import json
import os
import select
import shutil
import signal
import time
from contextlib import contextmanager

from matplotlib.image import imread

from patience import PATIENCE

FOUND = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
)
KEYS = {"Tab": 9, "Enter": 13}


class Browser:
    """One page, and what a person does with it."""

    def __init__(self, commands, replies):
        self._commands, self._replies, self._number, self._read = commands, replies, 0, b""
        self._session = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.send("Page.enable")

    def send(self, method, /, **params):
        """A command and its reply; events are passed over."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        reply = self._until(lambda reply: reply.get("id") == self._number)
        assert "error" not in reply, (method, reply)
        return reply["result"]

    def _until(self, wanted):
        deadline = time.monotonic() + PATIENCE
        while True:
            message, found, self._read = self._read.partition(b"\0")
            if found:
                reply = json.loads(message)
                if wanted(reply):
                    return reply
                continue
            self._read = message
            if not select.select([self._replies], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise TimeoutError("the browser gives no answer")
            self._read += os.read(self._replies, 1 << 20)

    def open(self, path):
        self.send("Page.navigate", url=path.as_uri())
        self._until(lambda event: event.get("method") == "Page.loadEventFired")

    def evaluate(self, expression):
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key):
        code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "text": "\r" if key == "Enter" else ""}
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, **code)

    def resize(self, width, height):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.send("Emulation.setDeviceMetricsOverride", **metrics)

    def prefer(self, scheme):
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self):
        """What is seen, as an array of [row, column, colour]."""
        return imread(io.BytesIO(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])), "png")


@contextmanager
def browser(profile):
    """A browser with a fresh profile, ended with the block."""
    (child_reads, commands), (replies, child_writes) = os.pipe(), os.pipe()
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (child_reads, child_writes)]
    actions = [(os.POSIX_SPAWN_DUP2, end, number) for end, number in zip(ends, (3, 4), strict=True)]
    actions += [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
    argv = [FOUND, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
    process = os.posix_spawn(FOUND, argv, os.environ, file_actions=actions, setpgroup=0)
    for end in (*ends, child_reads, child_writes):
        os.close(end)
    try:
        yield Browser(commands, replies)
    finally:
        os.close(commands)
        os.close(replies)
        os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)
