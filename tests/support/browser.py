"""A real browser (headless Chromium), driven over its debugging pipe: pages, keys, the pointer, screenshots.

Messages are JSON that a zero byte ends, sent to the browser's descriptor 3 and read from its 4."""
import base64
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import zlib

import numpy as np

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35, "PageUp": 33, "PageDown": 34,
        "Escape": 27, "Tab": 9, "Enter": 13}

# Settled one frame after the page has been painted as it is now.
PAINTED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


class Browser:
    """One browser with one tab. Every wait has an end (`timeout` seconds)."""

    def __init__(self, timeout=60):
        self.timeout = timeout
        self.profile = tempfile.mkdtemp()
        theirs, self.to = os.pipe()
        self.back, back = os.pipe()

        def pipes():
            # Each may already have the number of the other.
            high = [os.dup(fd) for fd in (theirs, back)]
            for fd, number in zip(high, (3, 4)):
                os.dup2(fd, number)

        self.child = subprocess.Popen(
            [BROWSER, "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--hide-scrollbars", "--no-first-run", "--force-device-scale-factor=1", f"--user-data-dir={self.profile}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False, preexec_fn=pipes, start_new_session=True)
        os.close(theirs)
        os.close(back)
        self.read = b""
        self.number = 0
        self.session = None
        self.events = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(domain + ".enable")

    def close(self):
        os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        os.close(self.to)
        os.close(self.back)
        # Its own children are gone a moment later, and write until then.
        deadline = time.monotonic() + self.timeout
        while os.path.exists(self.profile):
            shutil.rmtree(self.profile, ignore_errors=time.monotonic() < deadline)

    def _message(self, deadline):
        while b"\0" not in self.read:
            ready, _, _ = select.select([self.back], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser said nothing")
            some = os.read(self.back, 1 << 20)
            if not some:
                raise EOFError("the browser has ended")
            self.read += some
        text, _, self.read = self.read.partition(b"\0")
        return json.loads(text)

    def send(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        text = json.dumps(message).encode() + b"\0"
        while text:
            text = text[os.write(self.to, text):]
        deadline = time.monotonic() + self.timeout
        while True:
            said = self._message(deadline)
            if said.get("id") == self.number:
                if "error" in said:
                    raise RuntimeError(f"{method}: {said['error']}")
                return said["result"]
            self.events.append(said)

    def complaints(self):
        """What pages have thrown or logged as errors so far."""
        out = []
        for event in self.events:
            what = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                out.append(json.dumps(what["exceptionDetails"]))
            if event.get("method") == "Log.entryAdded" and what["entry"]["level"] == "error":
                out.append(what["entry"]["text"] + " " + what["entry"].get("url", ""))
        return out

    def requests(self):
        """The addresses that were asked for so far."""
        return [event["params"]["request"]["url"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]

    def size(self, width, height):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name):
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def open(self, address):
        begun = self.send("Page.navigate", url=address)
        if "errorText" in begun:
            raise RuntimeError(f"{address}: {begun['errorText']}")
        self.until("document.readyState === 'complete'")

    def run(self, script):
        """The value of an expression in the page."""
        said = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in said:
            raise RuntimeError(json.dumps(said["exceptionDetails"]))
        return said["result"].get("value")

    def until(self, script, timeout=None):
        """Waits until the expression is true; returns its value."""
        deadline = time.monotonic() + (timeout or self.timeout)
        while True:
            value = self.run(script)
            if value:
                return value
            if time.monotonic() > deadline:
                raise TimeoutError(script)
            time.sleep(0.05)

    def press(self, *keys):
        for key in keys:
            what = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
            self.send("Input.dispatchKeyEvent", type="rawKeyDown", **what)
            self.send("Input.dispatchKeyEvent", type="keyUp", **what)

    def point(self, x, y):
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def shoot(self, path=None, area=None):
        """A picture as [row, column, channel] of `area`, [x, y, width, height] of the page, else of all; kept at `path`."""
        if area is None:
            whole = self.send("Page.getLayoutMetrics")["cssContentSize"]
            area = [whole[key] for key in ("x", "y", "width", "height")]
        self.run(PAINTED)
        clip = dict(zip(("x", "y", "width", "height"), area), scale=1)
        data = base64.b64decode(self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                                          optimizeForSpeed=True, clip=clip)["data"])
        if path:
            path.write_bytes(data)
        return pixels(data)

    def named(self):
        """(role, name) of everything that a screen reader is told of."""
        nodes = self.send("Accessibility.getFullAXTree")["nodes"]
        value = lambda node, key: str(node.get(key, {}).get("value", ""))
        return [(value(node, "role"), value(node, "name")) for node in nodes if not node.get("ignored")]


def pixels(data):
    """An 8-bit PNG without interlacing as [row, column, channel] (ISO/IEC 15948)."""
    at, packed, header = 8, b"", None
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IHDR":
            header = struct.unpack(">IIBBBBB", data[at + 8:at + 8 + length])
        if kind == b"IDAT":
            packed += data[at + 8:at + 8 + length]
        at += 12 + length
    width, height, depth, colour, _, _, interlaced = header
    channels = {2: 3, 6: 4}[colour]
    assert (depth, interlaced) == (8, 0), header
    raw = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * channels)
    out = np.zeros((height, width * channels), np.uint8)
    above = np.zeros(width * channels, np.int32)
    for y in range(height):
        method, line = raw[y, 0], raw[y, 1:].astype(np.int32)
        if method == 2:
            line = line + above & 255
        elif method == 1:
            line = np.cumsum(line.reshape(-1, channels), axis=0).reshape(-1) & 255
        elif method in (3, 4):
            for x in range(len(line)):
                left = line[x - channels] if x >= channels else 0
                up, corner = above[x], above[x - channels] if x >= channels else 0
                if method == 3:
                    guess = (left + up) // 2
                else:
                    p = left + up - corner
                    guess = min((abs(p - left), 0, left), (abs(p - up), 1, up), (abs(p - corner), 2, corner))[2]
                line[x] = line[x] + guess & 255
        out[y] = line
        above = line
    return out.reshape(height, width, channels)[:, :, :3].astype(np.int32)
