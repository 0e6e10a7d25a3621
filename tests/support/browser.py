# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, spoken to over two pipes in its debugging protocol: JSON, a zero behind each.

    with browser.Browser(folder) as b:
        b.open(path, width=1200, height=900, dark=False)
        b.ask("document.title")          # the value of an expression
        b.key("Enter")
        b.png()                          # what is seen, as the bytes of a file
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LONG = 120  # seconds: only a hang takes as much
KEYS = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39,
        "ArrowDown": 40, "Tab": 9}


def find():
    """Where a Chromium lies; None if there is none."""
    named = os.environ.get("FERRY_CHROMIUM")
    return named or next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    def __init__(self, folder):
        to_read, self.to = os.pipe()
        self.of, to_write = os.pipe()

        def plumb():  # the browser reads commands from 3 and answers on 4
            spare = os.dup(to_write), os.dup(to_read)
            os.dup2(spare[1], 3)
            os.dup2(spare[0], 4)

        self.process = subprocess.Popen(
            [find(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--hide-scrollbars", "--force-device-scale-factor=1", "--font-render-hinting=none",
             "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=dict(os.environ, TMPDIR=str(folder)), preexec_fn=plumb, close_fds=False)
        os.close(to_read)
        os.close(to_write)
        self.rest, self.number, self.session, self.said = b"", 0, None, []
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.tell("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.tell(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()  # it leaves files behind, in the folder
        self.process.wait(LONG)
        os.close(self.to)
        os.close(self.of)

    def read(self):
        end = time.monotonic() + LONG
        while b"\0" not in self.rest:
            if not select.select([self.of], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser says nothing")
            more = os.read(self.of, 1 << 20)
            if not more:
                raise EOFError("the browser has ended")
            self.rest += more
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def tell(self, method, **parameters):
        """A command's result; what happens meanwhile is kept in `said`."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.said.append(answer)

    def open(self, path, width=1200, height=900, dark=False):
        """Opens a file and waits until its report is drawn; the seconds that took."""
        self.said.clear()
        self.tell("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)
        self.tell("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        begin = time.monotonic()
        self.tell("Page.navigate", url=path.resolve().as_uri())
        while self.ask("document.documentElement && document.documentElement.dataset.ready") != "yes":
            broken = [m for m in self.said if m.get("method") == "Runtime.exceptionThrown"]
            assert not broken, broken[0]["params"]["exceptionDetails"]
            assert time.monotonic() < begin + LONG, "the report does not get ready"
            time.sleep(0.02)  # between looks
        return time.monotonic() - begin

    def ask(self, expression):
        result = self.tell("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def key(self, name):
        for kind in ("rawKeyDown", "keyUp"):
            self.tell("Input.dispatchKeyEvent", type=kind, key=name, code=name,
                      windowsVirtualKeyCode=KEYS[name])

    def fetched(self):
        """The addresses that were asked for since the page was opened."""
        return [m["params"]["request"]["url"] for m in self.said
                if m.get("method") == "Network.requestWillBeSent"]

    def png(self):
        return base64.b64decode(self.tell("Page.captureScreenshot", format="png")["data"])
