"""Every row of the catalogue is held against Keras or named with a reason (rows.py). Needs no Keras, so it always runs.
Usage: rows_test.py KERAS_ROWS
"""
import json
import subprocess
import sys
import unittest

import rows

KERAS_ROWS = sys.argv[1]


class RowsTest(unittest.TestCase):
    def setUp(self):
        self.catalogue = json.loads(subprocess.run([KERAS_ROWS], check=True, capture_output=True, text=True).stdout)

    def test_every_row_is_compared_or_named(self):
        for kind, all_rows in self.catalogue.items():
            stand = rows.COMPARED[kind] + list(rows.NOT_COMPARED[kind])
            self.assertEqual(sorted(stand), sorted(all_rows), f"{kind}: rows.py beside the catalogue")

    def test_every_name_has_a_reason(self):
        tables = [*rows.NOT_COMPARED.values(), *rows.OPTIONS.values(), *rows.WORDS.values(), *rows.TYPES.values()]
        for reasons in tables:
            for name, reason in reasons.items():
                self.assertGreater(len(reason.split()), 3, name)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)
