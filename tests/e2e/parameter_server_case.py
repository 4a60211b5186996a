"""Jobs with parameter servers, from a manifest and with a process for each role. It takes BIN_FOLDER and DATA_FOLDER from the
arguments."""
import pathlib
import sys
import tempfile
import unittest

from parameter_job import Job, write_guide_data

BIN, DATA = (pathlib.Path(sys.argv.pop(1)).resolve() for _ in range(2))
WORKER = str(BIN / "meshtrain-worker")
TIMEOUT = 900  # of one run, also of a sanitized program


class Case(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self._folder.name)
        self.jobs = []

    def tearDown(self):
        for job in self.jobs:
            job.close()
        self._folder.cleanup()

    def job(self, name, manifest, **options):
        folder = self.folder / name
        folder.mkdir()
        if "x.idx" in manifest:
            write_guide_data(folder)
        self.jobs.append(Job(folder, WORKER, manifest.format(folder=folder, **self.values), **options))
        return self.jobs[-1]

    values = {"data": DATA, "every": 20, "epochs": 2, "steps": 60, "options": ""}
