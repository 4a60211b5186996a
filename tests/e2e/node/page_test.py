"""docs/reference/node.md says what the tests before were told, in the same words."""
import os
import unittest

import table


class Page(unittest.TestCase):
    maxDiff = None

    def test_it_has_each_row_as_it_was_told(self):
        page = table.of_the_page()
        if os.environ.get('MT_WRITE_REFERENCE'):
            table.write({**page, **table.ROWS})
            return
        self.assertEqual({what: page.get(what) for what in table.ROWS}, table.ROWS,
                         'MT_WRITE_REFERENCE=1 writes the page anew')

    @unittest.skipUnless(os.environ.get('MT_NODE_WHOLE'), 'only some of the tests have run')
    def test_it_has_no_other(self):
        # Those of TensorFlow's image may not have run; of the others each has.
        missing = [what for what in table.of_the_page() if what not in table.ROWS]
        if not os.environ.get('MT_TENSORFLOW_IMAGE'):
            missing = [what for what in missing if not what.startswith('TensorFlow: ')]
        self.assertEqual(missing, [])
