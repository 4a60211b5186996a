"""The page of a run in a real browser, finished and live, at 1 to 20,000 epochs: pixels, the keyboard, what is fetched.

  report_browser_test.py SAMPLES BIN_FOLDER    SAMPLES: the program e2e_report_samples
MT_WRITE_REPORT=FOLDER keeps pages and screenshots there, to look at."""
import contextlib
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "support"))
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import numpy as np  # noqa: E402

from browser import BROWSER, Browser  # noqa: E402

if BROWSER is None:
    print("skipped: expected Chromium (scripts/install-packages --tests), got: none on the PATH")
    sys.exit(77)
SAMPLES = sys.argv.pop(1)
from cli_case import RunningCase  # noqa: E402: it takes BIN_FOLDER from the arguments

COUNTS = (1, 20, 1200, 20000)
COLOURS = {"train": (0x25, 0x63, 0xB8), "test": (0xC9, 0x56, 0x0F)}
TITLES = ["Loss", "Loss of each step", "Time of each step"]
# Of a live page in bytes, its document and its own part, as docs/reference/page.md states them.
MOST_DOCUMENT, MOST_PAGE = 150_000, 200_000
BADGE = "document.querySelector('.badge').textContent"
WORDS = "document.querySelector('.state').textContent"

# Where each chart lies, and the part of it between its first point and its last.
PLACES = """[...document.querySelectorAll("svg.chart")].map((chart) => {
  const box = (node) => { const b = node.getBoundingClientRect(); return [b.x + scrollX, b.y + scrollY, b.width, b.height]; };
  return {title: chart.closest("figure").getAttribute("aria-label"), box: box(chart), frame: box(chart.querySelector(".frame"))};
})"""
# What the tips that can be seen say, chart by chart.
SHOWN = """[...document.querySelectorAll("svg.chart .tip")].map(
  (tip) => getComputedStyle(tip).display === "none" ? "" : [...tip.querySelectorAll("text")].map((t) => t.textContent).join("; "))"""


class Samples:
    """The program's live page, which goes on when it is told to."""

    def __init__(self, count):
        self.child = subprocess.Popen([SAMPLES, "--serve", str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.child.stdout.readline())

    def say(self, what):
        self.child.stdin.write(what + "\n")
        self.child.stdin.flush()
        self.child.stdout.readline()

    def close(self):
        self.child.stdin.close()
        self.child.wait(timeout=30)
        self.child.stdout.close()


class Relay:
    """A port of ours whose bytes go to another and back, as `kubectl port-forward` does it: nothing in them is changed, so
    the browser names the relay's host and port, not those of the process."""

    def __init__(self, port):
        self.to = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                threading.Thread(target=self.join, args=(near,), daemon=True).start()

    def join(self, near):
        with near, socket.create_connection(("127.0.0.1", self.to)) as far:
            back = threading.Thread(target=self.pump, args=(far, near), daemon=True)
            back.start()
            self.pump(near, far)
            back.join()

    @staticmethod
    def pump(one, other):
        with contextlib.suppress(OSError):
            while some := one.recv(1 << 16):
                other.sendall(some)
            other.shutdown(socket.SHUT_WR)

    def close(self):
        self.listener.close()


class Prefix:
    """A proxy in front of a process, below a path of its own."""

    def __init__(self, port, prefix):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                if not self.path.startswith(prefix):
                    return self.send_error(404)
                path = self.path[len(prefix):] or "/"
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
                    body = answer.read()
                    self.send_response(200)
                    self.send_header("Content-Type", answer.headers["Content-Type"])
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def get(port, path="/", host=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Host": host} if host else {})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.read().decode()


class PageCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        kept = os.environ.get("MT_WRITE_REPORT")
        cls.pages = pathlib.Path(kept or tempfile.mkdtemp()).resolve()
        if not kept:
            cls.addClassCleanup(shutil.rmtree, cls.pages)
        cls.kept = bool(kept)
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)
        cls.browser.size(1240, 900)
        cls.browser.scheme("light")

    def serve(self, count):
        samples = Samples(count)
        self.addCleanup(samples.close)
        return samples

    def look(self, name):
        """Keeps a screenshot for people."""
        if self.kept:
            self.browser.shoot(self.pages / f"{name}.png")

    def expect_curves(self, name, count):
        """What any page of so many epochs shows."""
        browser = self.browser
        charts = browser.run(PLACES)
        self.assertEqual([chart["title"] for chart in charts], TITLES)
        image = browser.shoot(self.pages / f"{name}.charts.png" if self.kept else None, [0, 0, 1240, 1200])

        def drawn(chart, series):
            x, y, width, height = chart["frame"]
            part = image[round(y) - 6:round(y + height), round(x):round(x + width)]
            return np.abs(part - np.array(COLOURS[series])).max(axis=2) <= 60

        for chart in charts[:2]:
            for series in ("train", "test") if chart["title"] == "Loss" else ("train",):
                with self.subTest(chart=chart["title"], series=series):
                    seen = drawn(chart, series)
                    if count == 1:
                        self.assertTrue(25 <= seen.sum() <= 200, f"a dot, got {seen.sum()} pixels")
                        continue
                    # Few points are dots, around which the line is left out, and the test's is dashed.
                    self.assertGreaterEqual(seen.any(axis=0).mean(), 0.95 if count > 24 else 0.8 if series == "train" else 0.6)
                    self.assertLessEqual(seen.mean(), 0.15, "a line, not a block")
                    # It falls: on the left it is higher than on the right.
                    rows = np.arange(seen.shape[0])[:, None]
                    tenth = seen.shape[1] // 10
                    heights = [(rows * side).sum() / side.sum() for side in (seen[:, :tenth], seen[:, -tenth:])]
                    self.assertGreater(heights[1] - heights[0], seen.shape[0] / 12)
        for i, chart in enumerate(charts):
            with self.subTest(chart=chart["title"]):
                self.expect_tips(i, chart, count)

    def expect_tips(self, i, chart, count):
        """By the keyboard, and under the pointer."""
        browser = self.browser
        word = "epoch" if chart["title"] == "Loss" else "step"
        browser.run(f"document.querySelectorAll('.at')[{i}].focus()")

        def shown(key=None):
            if key:
                browser.press(key)
            tips = browser.run(SHOWN)
            self.assertEqual([k for k, tip in enumerate(tips) if tip], [i], tips)
            told = browser.run("document.activeElement.getAttribute('aria-valuetext')")
            self.assertEqual(told, tips[i], "what is seen is what is told")
            return tips[i]

        last = shown()  # the newest, until somebody goes elsewhere
        self.assertRegex(last, rf"^{word}(s \d+ to)? {count}; train ")
        home, right, end, beyond = (shown(key) for key in ("Home", "ArrowRight", "End", "ArrowRight"))
        left, before = shown("ArrowLeft"), shown("Home")
        self.assertRegex(home, rf"^{word}(s 1 to)? \d+; train ")
        self.assertEqual((end, beyond, before), (last, last, home))
        if count > 1:
            self.assertEqual(len({home, right, left, end}), 4)
        if chart["title"] == "Loss":
            self.assertRegex(end, r"train \d\.\d{4}.*; test \d\.\d{4}")
        if word == "step" and count >= 1200:
            self.assertIn(" (", end, "the least and the largest of a group")
        browser.press("Escape")
        self.assertEqual(browser.run(SHOWN), [""] * 3)
        browser.run("document.activeElement.blur()")
        x, y, width, height = chart["frame"]
        browser.run(f"scrollTo(0, {y - 100})")
        browser.point(x + 0.9 * width, y - browser.run("scrollY") + height / 2)
        under = browser.run(SHOWN)[i]
        self.assertRegex(under, rf"^{word}")
        if count >= 1200:
            self.assertTrue(0.87 < int(re.match(r"\D+(?:\d+ to )?(\d+)", under)[1]) / count < 0.93, under)
        browser.point(2, 2)
        self.assertEqual(browser.run(SHOWN), [""] * 3)


class FinishedPageTest(PageCase):
    def test_curves_and_tips_at_any_length(self):
        subprocess.run([SAMPLES, self.pages, *map(str, COUNTS)], check=True, timeout=60)
        for count in COUNTS:
            with self.subTest(count=count):
                page = self.pages / f"{count}.html"
                self.assertLess(page.stat().st_size, MOST_PAGE)
                self.browser.open(page.as_uri())
                self.expect_curves(f"finished-{count}", count)
                self.look(f"finished-{count}")
                self.assertEqual(self.browser.run(BADGE), "ended")
                self.assertIn(f"epoch {count} of {count}", self.browser.run(WORDS))
        self.assertEqual(self.browser.complaints(), [])
        asked = [url for url in self.browser.requests() if not url.startswith(("file:", "about:"))]
        self.assertEqual(asked, [], "a report asks for nothing")

    def test_mesh_layouts_and_collectives(self):
        subprocess.run([SAMPLES, self.pages, "20"], check=True, timeout=60)
        browser = self.browser
        browser.open((self.pages / "20.html").as_uri())
        table = "[...document.querySelectorAll('table.mesh')].map((t) => [...t.rows].map((r) => [...r.cells].map((c) => c.innerText)))"
        self.assertEqual(browser.run(table)[1], [["", "model 0", "model 1"],
                                                 ["x 0", "1/cpu:0\nrank 4", "1/cpu:1\nrank 5"],
                                                 ["x 1", "1/cpu:2\nrank 6", "1/cpu:3\nrank 7"]])
        # A variable that is chosen shows where its shards lie: {*, x+model} is the same in both parts of the batch.
        press = "[...document.querySelectorAll('button')].find((b) => b.textContent === '%s').click()"
        browser.run(press % "hidden_1.kernel")
        for part in browser.run(table):
            self.assertEqual([row[1:] for row in part[1:]], [[row[1].split("\n")[0] + "\nshard 0", row[2].split("\n")[0] + "\nshard 1"]
                             if k == 0 else [row[1].split("\n")[0] + "\nshard 2", row[2].split("\n")[0] + "\nshard 3"]
                             for k, row in enumerate(part[1:])])
        self.look("shards")
        browser.run(press % "layer_0.bias")
        self.assertEqual({cell.split("\n")[1] for part in browser.run(table) for row in part[1:] for cell in row[1:]}, {"whole"})
        browser.run(press % "layer_0.bias")
        self.assertIn("rank 7", browser.run(table)[1][2][2])
        rows = lambda name: browser.run(
            f"[...document.querySelector('table[aria-label={name}]').rows].map((r) => [...r.cells].map((c) => c.innerText.trim()))")
        self.assertEqual([row[:5] for row in rows("Collectives")[1:]], [["all_reduce", "batch", "7", "2,716", "2.72 kB"],
                                                                        ["all_gather", "model", "3", "1,032", "1.03 kB"],
                                                                        ["in all", "", "10", "3,748", "3.75 kB"]])
        kernel = next(row for row in rows("Layouts") if row[0] == "hidden_1.kernel")
        self.assertEqual(kernel, ["hidden_1.kernel", "f32[784,700]", "{*, x+model}", "", "f32[784,175]", "549 kB", "2"])
        self.assertIn("And 44 more variables: plan.txt has them all.", browser.run("document.body.innerText"))

    def test_everything_has_a_name_and_nothing_is_wider_than_a_telephone(self):
        subprocess.run([SAMPLES, self.pages, "1200"], check=True, timeout=60)
        browser = self.browser
        self.addCleanup(browser.scheme, "light")
        self.addCleanup(browser.size, 1240, 900)
        pages = {}
        for scheme in ("light", "dark"):
            browser.scheme(scheme)
            browser.size(360, 800)
            browser.open((self.pages / "1200.html").as_uri())
            self.assertEqual(browser.run("[document.documentElement.scrollWidth, innerWidth]"), [360, 360])
            pages[scheme] = browser.shoot(self.pages / f"telephone-{scheme}.png" if self.kept else None, [0, 0, 360, 700])
        self.assertGreater(pages["light"].mean(), 200)
        self.assertLess(pages["dark"].mean(), 70)
        named = browser.named()
        for role, name in named:
            if role in ("slider", "group", "figure", "table", "region", "progressbar", "button", "Iframe", "image"):
                self.assertTrue(name, f"a {role} has no name")
        sliders = [name for role, name in named if role == "slider"]
        self.assertEqual(sliders, ["Loss, by epoch", "Loss of each step", "Time of each step"])
        self.assertTrue(any(role == "group" and re.match(r"Loss, by epoch: train from \d\.\d{4} to \d\.\d{4}; test from", name)
                            for role, name in named), named)
        # Text is told from what is behind it (WCAG's 4.5 to 1), in both schemes.
        for scheme in ("light", "dark"):
            browser.scheme(scheme)
            low = browser.run("""(() => {
              const rgb = (c) => c.match(/[\\d.]+/g).map(Number);
              const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
                                     return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
              const behind = (n) => { for (; n; n = n.parentElement) { const c = rgb(getComputedStyle(n).backgroundColor);
                                      if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
              const out = [];
              for (const n of document.querySelectorAll("h1, h2, h3, p, th, td, dt, dd, .badge, .legend, svg.chart text")) {
                if (!n.textContent.trim() || !n.checkVisibility()) continue;
                const style = getComputedStyle(n), a = light(rgb(n instanceof SVGElement ? style.fill : style.color)), b = light(behind(n));
                const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
                if (ratio < 4.5) out.push(n.tagName + " " + n.textContent + " " + ratio.toFixed(2));
              }
              return out.slice(0, 5); })()""")
            self.assertEqual(low, [], scheme)


class LivePageTest(PageCase):
    def test_it_goes_on_at_any_length(self):
        browser = self.browser
        for count in COUNTS:
            with self.subTest(count=count):
                samples = self.serve(count)
                self.assertLess(len(get(samples.port, "/run.json")), MOST_DOCUMENT)
                self.assertLess(len(get(samples.port)), MOST_PAGE)
                browser.open(f"http://localhost:{samples.port}/")
                self.expect_curves(f"live-{count}", count)
                self.look(f"live-{count}")
                self.assertEqual(browser.run(BADGE), "training")
                self.assertRegex(browser.run(WORDS), rf"epoch {count + 1} of {2 * count} · step [\d,]+ of [\d,]+ · \d.* left")
                self.assertEqual(browser.run("document.title"), f"{count + 1}/{2 * count} mnist-mlp")
                self.assertIn("2.12 ms", browser.run("document.querySelector('.tiles').innerText"))
                if count != 20:
                    continue
                # What has the keyboard's focus keeps it, at its place, while more comes in.
                browser.run("document.querySelector('.at').focus()")
                browser.press("Home", "ArrowRight")
                told = "document.activeElement.getAttribute('aria-valuetext')"
                self.assertRegex(browser.run(told), "^epoch 2;")
                samples.say("add 1")
                browser.until(f"{WORDS}.includes('epoch 22 of 40')")
                self.assertRegex(browser.run(told), "^epoch 2;")
                browser.press("End")
                self.assertRegex(browser.run(told), "^epoch 21;")
                self.assertEqual(browser.run("document.querySelectorAll('h1').length"), 1, "drawn again, not once more")
                samples.say("wait")
                browser.until(f"{BADGE} === 'waiting'")
                self.assertIn("worker-2 is lost", browser.run("document.querySelector('.why').textContent"))
                samples.say("fail")
                browser.until(f"{BADGE} === 'failed'")
                self.assertEqual(browser.run("document.querySelector('.why').textContent"), "step 7: <b>loss</b> & gradients")
                self.look("failed")
                self.assertEqual(browser.complaints(), [])
                samples.close()
                browser.until("document.querySelector('.why').textContent.includes('The process has gone')")
                self.assertEqual(browser.run(BADGE), "failed", "that it has gone does not hide why")
                browser.events.clear()  # a connection that is refused is in the browser's log

    def test_a_process_that_has_gone_is_said_to_be_silent(self):
        samples = Samples(20)
        browser = self.browser
        browser.open(f"http://localhost:{samples.port}/")
        samples.close()
        browser.until(f"{BADGE} === 'no answer'")
        self.assertRegex(browser.run("document.querySelector('.why').textContent"), r"^No answer for \d.* report.html among it\.$")
        self.assertNotIn("left", browser.run(WORDS))
        self.look("no-answer")
        browser.events.clear()  # a connection that is refused is in the browser's log

    def test_by_port_forward_and_below_a_path(self):
        samples = self.serve(20)
        relay = Relay(samples.port)
        self.addCleanup(relay.close)
        proxy = Prefix(samples.port, "/jobs/mnist")
        self.addCleanup(proxy.close)
        browser = self.browser
        browser.events.clear()
        done = 20
        for address in (f"http://localhost:{relay.port}/", f"http://127.0.0.1:{relay.port}/", f"http://[::ffff:127.0.0.1]:{relay.port}/",
                        f"http://localhost:{proxy.port}/jobs/mnist/", f"http://localhost:{proxy.port}/jobs/mnist"):
            with self.subTest(address):
                browser.open(address)
                self.assertIn(f"epoch {done + 1} of 40", browser.run(WORDS))
                samples.say("add 1")
                done += 1
                browser.until(f"{WORDS}.includes('epoch {done + 1} of 40')")
        self.assertEqual(browser.complaints(), [])
        ours = [url for url in browser.requests() if not re.match(r"http://[^/]+(/jobs/mnist)?/?$", url)]
        self.assertTrue(ours)
        for url in ours:
            self.assertRegex(url, r"^http://[^/]+(/jobs/mnist)?/run\.json$")
        # Under a name that is not the process's own nobody gets a figure, through a port-forward either.
        for path in ("/", "/run.json"):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                get(relay.port, path, host=f"rebound.example:{relay.port}")
            self.assertEqual(refused.exception.code, 421)


class RealRunTest(PageCase, RunningCase):
    def test_a_run_as_a_user_sees_it(self):
        model = "    layout: {rules: [{match: hidden.kernel, spec: [unsharded, model]}]}\n    train: {epochs"
        manifest = self.manifest(mesh="{batch: 2, model: 2}", epochs=2000000, every=1000000000,
                                 edit=lambda t: t.replace("    train: {epochs", model))
        plan = self.meshtrain("plan", "-f", manifest).stdout
        child = self.start(manifest)
        address = next(line.split()[-1] for line in child.stdout if line.startswith("live page: "))
        threading.Thread(target=lambda: [None for _ in child.stdout], daemon=True).start()  # a full pipe would stop it
        browser = self.browser
        browser.events.clear()
        browser.open(address)
        browser.until(f"{BADGE} === 'training' && /epoch [1-9]\\d* of 2000000 · step [1-9]/.test({WORDS})")
        first = browser.run(WORDS)
        browser.until(f"{WORDS} !== {json.dumps(first)}")
        browser.until(f"document.querySelectorAll('svg.chart').length === {2 * 2 + 1}")
        self.assertRegex(browser.run(WORDS), r"epoch \d+ of 2000000 · step [\d,]+ of 10,000,000 · .* left")
        tiles = dict(browser.run("[...document.querySelectorAll('.tiles > div')].map((d) => [...d.children].map((c) => c.textContent))"))
        self.assertRegex(tiles["Loss of the last step"], r"^\d")
        self.assertRegex(tiles["Accuracy of the last step"], r"^\d")
        self.assertRegex(tiles["Step time"], r"^[\d.]+ (µs|ms|s)$")
        self.assertEqual(browser.run("document.querySelectorAll('.mesh tbody td').length"), 4)
        # The same collectives and layouts as `meshtrain plan` prints.
        rows = browser.run("[...document.querySelector('table[aria-label=Collectives]').rows].map((r) => [...r.cells].map((c) => c.innerText))")
        printed = re.findall(r"^  (\w+) +over (\S+) +(\d+) x +(\d+) bytes", plan, re.MULTILINE)
        self.assertEqual([tuple(cell.replace(",", "") if k > 1 else cell for k, cell in enumerate(row[:4])) for row in rows[1:-1]], printed)
        self.assertTrue(printed)
        layouts = browser.run("[...document.querySelector('table[aria-label=Layouts]').rows].map((r) => [...r.cells].map((c) => c.innerText))")
        self.assertIn(["hidden.kernel", "f32[100,12]", "{*, model}", "", "f32[100,6]", "2.40 kB", "2"], layouts)
        self.assertIn("share their memory", browser.run("document.body.innerText"))
        browser.run("[...document.querySelectorAll('button')].find((b) => b.textContent === 'hidden.kernel').click()")
        self.look("run-live")
        self.assertEqual(browser.complaints(), [])
        child.send_signal(signal.SIGTERM)
        self.assertEqual(child.wait(timeout=60), 143)
        browser.open((self.folder / "out" / "report.html").as_uri())
        self.assertEqual(browser.run(BADGE), "stopped")
        self.assertRegex(browser.run("document.querySelector('.why').textContent"), r"^asked to stop at step \d+; run again to go on$")
        self.look("run-stopped")


del RunningCase, PageCase  # they hold no tests of their own
if __name__ == "__main__":
    unittest.main(verbosity=2)
