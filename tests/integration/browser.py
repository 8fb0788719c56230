"""A headless Chromium for tests, driven over its DevTools pipe with the standard library alone."""

import base64
import json
import os
import selectors
import shutil
import subprocess
import sys
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --remote-debugging-pipe"
)
# The browser reads commands from file 3 and writes to file 4; whichever numbers the pipes have here, they are moved.
MOVE = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(commands, 3); os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35, "Enter": 13}


def installed():
    """The path of a browser, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page of a browser of its own. Messages are JSON, each ended by a zero byte."""

    def __init__(self, program, folder, patience=60.0):
        self.patience, self.events, self._last, self._rest, self._session = patience, [], 0, b"", None
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        ends = [str(read_commands), str(write_answers)]
        command = [sys.executable, "-I", "-c", MOVE, *ends, program, *FLAGS.split(), f"--user-data-dir={folder}"]
        self._process = subprocess.Popen(
            [*command, "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(read_commands, write_answers),
        )
        os.close(read_commands)
        os.close(write_answers)
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._answers, selectors.EVENT_READ)

    def __enter__(self):
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        try:
            self._session = None
            self.call("Browser.close")
            self._process.wait(10)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            self._process.kill()  # this browser only
            self._process.wait()
        self._ready.close()
        os.close(self._commands)
        os.close(self._answers)

    def call(self, method, **parameters):
        """Send a command and return its result; events that arrive before it are kept."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        rest = json.dumps(message).encode() + b"\0"
        while rest:
            rest = rest[os.write(self._commands, rest) :]
        deadline = time.monotonic() + self.patience
        while True:
            answer = self._receive(deadline, method)
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _receive(self, deadline, what):
        while b"\0" not in self._rest:
            if not self._ready.select(max(deadline - time.monotonic(), 0)):
                raise RuntimeError(f"{what}: no answer from the browser")
            part = os.read(self._answers, 1 << 20)
            if not part:
                raise RuntimeError(f"{what}: the browser has closed its pipe")
            self._rest += part
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def open(self, url, width=1400, height=900):
        """Load a page in a window of a given size."""
        self.resize(width, height)
        self.call("Page.navigate", url="about:blank")  # else another place in the same page would not load it anew
        self.settle()
        self.events.clear()
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + self.patience
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive(deadline, url))
        self.settle()

    def resize(self, width, height=900):
        """Give the window a size in pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def value(self, expression):
        """Evaluate JavaScript in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def settle(self):
        """Wait until the page has been drawn twice."""
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def press(self, key, times=1):
        """Press a key on whatever has the focus."""
        for _ in range(times):
            for kind in ("rawKeyDown", "keyUp"):
                code = KEYS[key]
                self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)
        self.settle()

    def type(self, text):
        """Type text into whatever has the focus."""
        self.call("Input.insertText", text=text)
        self.settle()

    def picture(self, path):
        """Save the whole page as a PNG."""
        width, height = self.value("[innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def problems(self):
        """What the page complained about: exceptions, and errors and warnings on its console."""
        found = []
        for event in self.events:
            method, about = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(about["exceptionDetails"].get("exception", {}).get("description", "exception"))
            elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
                found.append(str(about["args"]))
            elif method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
                found.append(about["entry"]["text"])
        return found

    def requests(self):
        """Addresses that the page asked for."""
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
