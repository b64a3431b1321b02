"""A headless Chromium, driven over a pipe by its DevTools protocol: nothing to install beside the browser."""

import json
import os
import shutil
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select
from time import monotonic, sleep

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Without a sandbox, as there is none for root in a container; it only opens pages of these tests.
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
WAIT_SECONDS = 60


class ProtocolError(Exception):
    """What the browser could not do."""


class Page:
    """One page of a browser."""

    def __init__(self, browser: subprocess.Popen) -> None:
        self._browser, self._rest, self._count = browser, b"", 0
        self._session: str | None = None
        self.log: list[str] = []  # errors of the page
        self.requests: list[str] = []  # addresses asked for
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters):
        """The result of a command of the protocol."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None and not method.startswith(("Target.", "Browser.")):
            message["sessionId"] = self._session
        os.write(self._browser.stdin.fileno(), json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._count:
            self._notice(answer)
        if "error" in answer:
            raise ProtocolError(method, answer["error"])
        return answer["result"]

    def _receive(self):
        answers = self._browser.stdout.fileno()
        while b"\0" not in self._rest:
            assert select([answers], [], [], WAIT_SECONDS)[0], "the browser does not answer"
            read = os.read(answers, 1 << 20)
            assert read, "the browser has ended"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _notice(self, event) -> None:
        about = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.log.append(json.dumps(about["exceptionDetails"])[:500])
            case "Log.entryAdded" if about["entry"]["level"] == "error":
                self.log.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")
            case "Network.requestWillBeSent":
                self.requests.append(about["request"]["url"])

    def open(self, address: str, width: int = 1280, height: int = 900, scale: float = 1) -> None:
        """Go to an address, in a window of that size, and forget what the page before has noted."""
        self.call("Page.navigate", url="about:blank")
        self.wait("location.href === 'about:blank'")
        self.log.clear()
        self.requests.clear()
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        self.call("Page.navigate", url=address)

    def run(self, script: str):
        """The value of an expression, awaited if it is a promise."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def text(self, selector: str) -> str:
        """The text in an element."""
        return self.run(f"document.querySelector({json.dumps(selector)}).textContent")

    def wait(self, condition: str) -> None:
        """Wait until an expression holds."""
        script = f"(() => {{ try {{ return Boolean({condition}); }} catch {{ return false; }} }})()"

        def holds() -> bool:
            with suppress(ProtocolError):  # the page has just become another one
                return self.run(script)
            return False

        wait_until(holds, lambda: f"{condition}; {self.log}")

    def click(self, selector: str) -> None:
        """Click with the mouse in the middle of an element."""
        x, y = self.run(f"""(() => {{
          const element = document.querySelector({json.dumps(selector)});
          element.scrollIntoView({{block: "center"}});
          const box = element.getBoundingClientRect();
          return [box.x + box.width / 2, box.y + box.height / 2];
        }})()""")
        self.mouse((x, y))

    def mouse(self, *points) -> None:
        """Press the mouse at the first point, move it over the others, and release it."""
        kinds = ["mousePressed", *["mouseMoved"] * (len(points) - 1), "mouseReleased"]
        for kind, (x, y) in zip(kinds, [*points, points[-1]], strict=True):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def key(self, key: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def set(self, selector: str, value: object, event: str = "input") -> None:
        """Give a control a value, as someone would."""
        self.run(f"""(() => {{
          const element = document.querySelector({json.dumps(selector)});
          element.value = {json.dumps(value)};
          element.dispatchEvent(new Event({json.dumps(event)}, {{bubbles: true}}));
        }})()""")

    def choose_file(self, selector: str, path: Path) -> None:
        """Give a file to a control."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def wait_for_files(self, folder: Path, names: list[str]) -> None:
        """Wait until the browser has written files: before, their names belong to empty ones, or to none."""
        files = [folder / name for name in names]
        wait_until(lambda: all(file.is_file() and file.stat().st_size for file in files), lambda: [*folder.iterdir()])


def wait_until(holds, what) -> None:
    """Wait until `holds()`; after a while, fail with `what()`."""
    end = monotonic() + WAIT_SECONDS
    while not holds():
        assert monotonic() < end, f"not within {WAIT_SECONDS} s: {what()}"
        sleep(0.02)


@contextmanager
def open_browser(profile: Path):
    """A page of a new browser, whose profile is in a new folder."""
    # The protocol is on the descriptors 3 and 4.
    words = ["bash", "-c", 'exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null', CHROMIUM, *FLAGS]
    words += [f"--user-data-dir={profile}", "about:blank"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, **pipes) as browser:
        try:
            yield Page(browser)
        finally:
            browser.kill()
