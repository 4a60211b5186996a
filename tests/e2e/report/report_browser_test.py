"""The report's curves as a real browser draws them, at 1 to 20,000 points: pixels of a screenshot, and the keyboard.

  report_browser_test.py SAMPLES    SAMPLES: the program e2e_report_samples
MT_WRITE_REPORT=FOLDER keeps pages and screenshots there, to look at."""
import html
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

import numpy as np

COUNTS = (1, 20, 1200, 20000)
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SAMPLES = None
# A chart's own units, as runtime/report/chart.cc has them.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, INSIDE = 560, 340, 58, 18, 44, 48, 14
COLOURS = {"train": (0x25, 0x63, 0xB8), "test": (0xD9, 0x66, 0x1F)}

# Where each chart lies, and what its places say while the keys are pressed that a person presses.
PROBE = """
<script>
const seen = [...document.querySelectorAll("svg.chart")].map((chart) => {
  const box = chart.getBoundingClientRect();
  const shown = () => [...chart.querySelectorAll(".at")].filter(
      (at) => getComputedStyle(at.querySelector(".tip")).display !== "none").map((at) => at.getAttribute("aria-label"));
  const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
  const stops = chart.querySelectorAll('[tabindex="0"]');
  const out = {focused: document.hasFocus(), title: chart.getAttribute("aria-label"), box: [box.x, box.y, box.width, box.height],
               stops: stops.length, places: chart.querySelectorAll(".at").length, before: shown()};
  stops[0].focus();
  out.first = shown();
  for (const key of ["ArrowRight", "End", "ArrowRight", "ArrowLeft", "Home", "ArrowLeft"]) {
    press(key);
    (out.keys ??= []).push(shown());
  }
  out.stops_after = chart.querySelectorAll('[tabindex="0"]').length;
  document.activeElement.blur();
  return out;
});
document.body.insertAdjacentHTML("beforeend", "<pre id=seen></pre>");
document.getElementById("seen").textContent = JSON.stringify(seen);
</script>"""


def browse(page, *flags):
    with tempfile.TemporaryDirectory() as profile:
        return subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--force-device-scale-factor=1", "--window-size=1240,1500", f"--user-data-dir={profile}", *flags,
             page.as_uri()],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=True).stdout


def pixels(path):
    """An 8-bit PNG without interlacing as [row, column, channel] (ISO/IEC 15948)."""
    data = path.read_bytes()
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


class ReportTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        kept = os.environ.get("MT_WRITE_REPORT")
        cls.folder = pathlib.Path(kept or tempfile.mkdtemp()).resolve()
        if not kept:
            cls.addClassCleanup(shutil.rmtree, cls.folder)
        subprocess.run([SAMPLES, cls.folder, *map(str, COUNTS)], check=True, timeout=60)
        cls.seen, cls.image = {}, {}
        for count in COUNTS:
            page = cls.folder / f"{count}.html"
            browse(page, f"--screenshot={cls.folder}/{count}.png")
            cls.image[count] = pixels(cls.folder / f"{count}.png")
            probe = cls.folder / f"{count}.probe.html"
            probe.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
            # A new browser's page is drawn before the window has the focus now and then; keys go nowhere then.
            for _ in range(20):
                said = re.search(r'<pre id="seen">(.*?)</pre>', browse(probe, "--dump-dom"), re.DOTALL)
                cls.seen[count] = json.loads(html.unescape(said[1]))
                if all(chart["focused"] for chart in cls.seen[count]):
                    break

    def drawn(self, count, chart, series):
        """Which pixels between the chart's first and last point have the series' colour."""
        x, y, width, height = chart["box"]
        scale = width / WIDTH
        self.assertAlmostEqual(height / HEIGHT, scale, places=2)
        rows = slice(round(y + (TOP - 6) * scale), round(y + (HEIGHT - BOTTOM) * scale))
        columns = slice(round(x + (LEFT + INSIDE) * scale), round(x + (WIDTH - RIGHT - INSIDE) * scale))
        colour = np.array(COLOURS[series])
        return np.abs(self.image[count][rows, columns] - colour).max(axis=2) <= 60

    def test_one_point_is_a_dot(self):
        for chart in self.seen[1]:
            drawn = self.drawn(1, chart, "train")
            self.assertTrue(25 <= drawn.sum() <= 200, (chart["title"], drawn.sum()))

    def test_lines_go_from_the_first_point_to_the_last(self):
        for count in COUNTS[1:]:
            titles = [chart["title"] for chart in self.seen[count]]
            self.assertEqual(titles, ["Loss", "Loss of each step"])
            for chart in self.seen[count]:
                for series in ("train", "test") if chart["title"] == "Loss" else ("train",):
                    with self.subTest(count=count, chart=chart["title"], series=series):
                        drawn = self.drawn(count, chart, series)
                        crossed = drawn.any(axis=0).mean()
                        # Few points are dots, around which the line is left out, and the test's is dashed.
                        self.assertGreaterEqual(crossed, 0.95 if count > 24 else 0.8 if series == "train" else 0.6)
                        # A line, not a block.
                        self.assertLessEqual(drawn.mean(), 0.15)
                        # It falls: on the left it is higher than on the right.
                        rows = np.arange(drawn.shape[0])[:, None]
                        tenth = drawn.shape[1] // 10
                        heights = [(rows * part).sum() / part.sum() for part in (drawn[:, :tenth], drawn[:, -tenth:])]
                        self.assertGreater(heights[1] - heights[0], drawn.shape[0] / 4)

    def test_places_are_told_to_the_keyboard(self):
        for count in COUNTS:
            for chart in self.seen[count]:
                with self.subTest(count=count, chart=chart["title"]):
                    word = "epoch" if chart["title"] == "Loss" else "step"
                    self.assertTrue(chart["focused"], "the browser's window never had the focus")
                    self.assertEqual((chart["before"], chart["stops"], chart["stops_after"]), ([], 1, 1))
                    self.assertEqual(len(chart["first"]), 1)
                    self.assertRegex(chart["first"][0], rf"^{word}(s \d+ to)? \d+; train \d\.\d{{4}}")
                    self.assertLessEqual(chart["places"], 60)
                    right, end, beyond, left, home, before = (shown[0] for shown in chart["keys"])
                    self.assertRegex(end, rf"^{word}(s \d+ to)? {count};")
                    self.assertEqual((beyond, home, before), (end, chart["first"][0], chart["first"][0]))
                    if count > 1:
                        self.assertEqual(len({chart["first"][0], right, left, end}), 4)
                    if chart["title"] == "Loss":
                        self.assertIn("; test ", end)


if __name__ == "__main__":
    if BROWSER is None:
        print("skipped: expected Chromium (scripts/install-packages --tests), got: none on the PATH")
        sys.exit(77)
    SAMPLES = sys.argv.pop(1)
    unittest.main(verbosity=2)
