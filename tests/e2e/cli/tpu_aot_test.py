#!/usr/bin/env python3
"""`meshtrain plan --target`: what is refused and said, with a plugin in libtpu's place (Refusals); and every program of the
examples compiled by libtpu itself, which MESHTRAIN_LIBTPU names (Libtpu). Nothing runs on a TPU.
    tpu_aot_test.py BIN_FOLDER PLUGINS_FOLDER [CLASS ...]"""
import gzip
import os
import re
import struct
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PLUGINS = Path(sys.argv.pop(2)).resolve()
from cli_case import BIN, Case  # noqa: E402: it takes BIN_FOLDER from the arguments

EXAMPLES = ROOT / "deploy" / "examples"
LIBTPU = os.environ.get("MESHTRAIN_LIBTPU", "")
# Of the mesh: example, then the targets that it is compiled for.
TARGETS = {
    "charlm": ["v5e-8"],
    "lenet": ["v5e-8"],
    "mnist-mlp": ["v4-8", "v5e-8", "v5p-16", "v6e-8"],
    "mnist-mlp-model-parallel": ["v5e-8", "v6e-8"],
    "parameter-server": ["v5e-1"],  # the step of one worker
    "resnet": ["v5e-8"],
}
# No program of ours: what such a container runs, it alone knows.
WITHOUT_PROGRAM = {"custom-loop"}
UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}


def size(text):
    """Of "1.5 MB"; what is rounded may be half a unit of its last place more."""
    number, unit = text.split()
    return float(number) * UNITS[unit]


class Ahead(Case):
    def plan(self, manifest, target, library, code=0):
        environment = os.environ | {"MESHTRAIN_LIBTPU": library}
        result = subprocess.run([BIN / "meshtrain", "plan", "-f", manifest, "--target", target], cwd=self.folder,
                                capture_output=True, text=True, timeout=3600, stdin=subprocess.DEVNULL, env=environment)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        return result.stdout if code == 0 else result.stderr

    def rows(self, printed):
        """Of the table: program to (libtpu's bytes, the plan's), each as code, arguments, outputs, temporary."""
        found, last = {}, None
        bytes_of = r"([\d.]+ [kMG]?B)\s+"
        for line in printed[printed.index("ahead of time"):].splitlines()[2:]:
            plan = re.fullmatch(r"  by the plan\s+" + 3 * bytes_of, line + " ")
            if plan:
                found[last] = (found[last], [size(text) for text in plan.groups()])
                continue
            row = re.fullmatch(r"(\w.*?)\s{2,}" + 4 * bytes_of + r"([\d.]+) s", line)
            self.assertIsNotNone(row, line)
            last = row[1]
            found[last] = [size(text) for text in row.groups()[1:5]]
        return found


class Refusals(Ahead):
    FAKE = str(PLUGINS / "libplugin_ahead.so")

    def test_what_is_wrong_is_said(self):
        four = self.manifest(mesh="{batch: 4}")
        self.assertIn("expected libtpu, named by MESHTRAIN_LIBTPU (scripts/install-libtpu fetches it), got: none",
                      self.plan(four, "tpu:v5e-4", "", code=78))
        self.assertIn("/no/libtpu.so, got: no such file", self.plan(four, "tpu:v5e-4", "/no/libtpu.so", code=66))
        self.assertIn("or one close to it, got: 7.1",
                      self.plan(four, "tpu:v5e-4", str(PLUGINS / "libplugin_of_other_version.so"), code=78))
        said = self.plan(four, "tpu:v5-4", self.FAKE, code=78)
        self.assertIn("target: expected one of tpu:v4-8, ", said)
        self.assertIn("got: tpu:v5-4, did you mean `tpu:v5e-4`?", said)
        # Whether libtpu is there or not.
        for library in ("", self.FAKE):
            self.assertIn("target tpu:v5e-8: expected a mesh of its 8 devices, got: 4 (batch=4",
                          self.plan(four, "tpu:v5e-8", library, code=78))

    def test_what_a_tpu_cannot_keep_is_refused_at_its_place(self):
        strict = self.manifest(mesh="{batch: 4}", edit=lambda text: text.replace("    seed: 3\n", "    seed: 3\n    numerics: strict\n"))
        self.assertRegex(self.plan(strict, "tpu:v5e-4", self.FAKE, code=78), r"job\.yaml:\d+:\d+: .*numerics: strict holds where")

    def test_each_program_of_the_job_has_its_row(self):
        # 100 images in batches of 24 and one of 4; 40 of test, 24 and 16. Kinds that do not run here yet may be planned for.
        for kind in ("", "    devices: {kind: tpu}\n"):
            text = self.manifest(mesh="{batch: 4}", batch=24, edit=lambda text, kind=kind: text.replace("    seed: 3\n", kind + "    seed: 3\n"))
            printed = self.plan(text, "tpu:v5e-4", self.FAKE)
            self.assertIn("ahead of time  for tpu:v5e-4 (v5e:2x2) by libtpu of PJRT API 0.", printed)
            self.assertIn("nothing ran on a TPU", printed)
            rows = self.rows(printed)
            self.assertEqual(list(rows), ["initial values", "training, batches of 4", "training, batches of 24",
                                          "evaluation, batches of 16", "evaluation, batches of 24"])
            for compiled, planned in rows.values():
                self.assertGreater(compiled[0], 100)
                self.assertEqual(compiled[1:], [4100, 512, 512])
                self.assertGreater(planned[0], 0)

    def test_a_compiler_that_ends_its_process_is_an_error(self):
        os.environ["MT_AHEAD"] = "abort"
        self.addCleanup(os.environ.pop, "MT_AHEAD")
        said = self.plan(self.manifest(mesh="{batch: 4}"), "tpu:v5e-4", self.FAKE, code=70)
        self.assertIn("target tpu:v5e-4: training, batches of 20: ", said)
        self.assertIn("signal 6: F1125 00:00:00.000 1 compiler.cc:7] Check failed: it is a toaster", said)


class Libtpu(Ahead):
    def setUp(self):
        super().setUp()
        data = self.folder / "data"
        data.mkdir()
        for images, labels, dims in (("train-images-idx3-ubyte", "train-labels-idx1-ubyte", (60000, 28, 28)),
                                     ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", (10000, 28, 28)),
                                     ("train-images32.idx", "train-labels32.idx", (512, 32, 32, 3)),
                                     ("test-images32.idx", "test-labels32.idx", (128, 32, 32, 3))):
            for name, shape in ((images, dims), (labels, dims[:1])):
                head = struct.pack(">HBB", 0, 8, len(shape)) + b"".join(struct.pack(">I", d) for d in shape)
                with gzip.open(data / f"{name}.gz", "wb", 1) as file:
                    file.write(head)
                    for _ in range(shape[0]):
                        file.write(bytes(b"\0" * (len(shape) > 1 and shape[1] * shape[2] * (shape[3:] or [1])[0] or 1)))
        (data / "text.txt").write_text("It was the best of times, it was the worst of times.\n" * 4000)

    def test_every_example(self):
        self.assertEqual({path.stem for path in EXAMPLES.glob("*.yaml")}, TARGETS.keys() | WITHOUT_PROGRAM)
        for name, targets in TARGETS.items():
            for target in targets:
                with self.subTest(name, target=target):
                    printed = self.plan(str(EXAMPLES / f"{name}.yaml"), f"tpu:{target}", LIBTPU)
                    print(f"\n{name} on {target}\n{printed[printed.index('ahead of time'):]}", flush=True)
                    states = size(re.search(r"memory +peak .* = states ([\d.]+ \w+) ", printed)[1])
                    rows = self.rows(printed)
                    self.assertTrue(any(row.startswith("training") for row in rows), rows)
                    for program, (compiled, planned) in rows.items():
                        self.assertGreater(compiled[0], 0, program)
                        self.assertGreaterEqual(compiled[3], 0, program)
                        self.assertGreaterEqual(compiled[1], 0.99 * planned[0], program)
                        if program.startswith("training"):
                            self.assertGreaterEqual(compiled[1], 0.99 * states, program)
                            self.assertGreater(compiled[2], 0, program)

    def test_an_example_whose_mesh_is_another(self):
        for name in TARGETS:
            self.assertIn("target tpu:v5e-16: expected a mesh of its 16 devices, got: ",
                          self.plan(str(EXAMPLES / f"{name}.yaml"), "tpu:v5e-16", LIBTPU, code=78))


if __name__ == "__main__":
    if "Libtpu" in sys.argv and not LIBTPU:
        print("tpu-aot did not run: MESHTRAIN_LIBTPU names no library")
        sys.exit(0)
    if "Refusals" in sys.argv and not Path(Refusals.FAKE).exists():
        print("tpu-aot did not run: this build has no pjrt_c_api.h")
        sys.exit(0)
    unittest.main(verbosity=2)
