"""What jobs were told of what went wrong on the nodes: the table of docs/reference/node.md, and the page that it stands on."""
import re

from cluster import ROOT, Case, eventually, kubectl

PAGE = ROOT / 'docs/reference/node.md'
HEAD = '| what is wrong | condition, reason | message | what to do |\n|---|---|---|---|\n'
ROWS = {}  # what is wrong -> the other cells, as the tests of this run were told them
LONGEST = 260


def shortened(message):
    """Without what differs from run to run: uids, addresses, sizes, on which node it was."""
    for pattern, word in ((r'\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b', 'UID'),
                          (r'(?<=-)[0-9a-f]{8}(?=[,):]|$)', 'HASH'),
                          (r'\b\d+\.\d+\.\d+\.\d+(:\d+)?\b', 'ADDRESS'), (r'\bnode-\d\b', 'node-N'), (r'\b\d{6,}\b', 'N'),
                          (r'\b\d+ s after\b', 'N s after'), (r'step \d+', 'step N'), (r'\s+', ' '), (r'\|', r'\\|')):
        message = re.sub(pattern, word, message)
    return message if len(message) <= LONGEST else message[:LONGEST].rstrip() + '…'


def code(text):
    return f'`` {text} ``' if '`' in text else f'`{text}`'


def of_the_page():
    """{what is wrong: the other cells}, in the page's order."""
    rows = PAGE.read_text().partition(HEAD)[2].splitlines()
    cells = [re.split(r'(?<!\\) \| ', row.removeprefix('| ').removesuffix(' |')) for row in rows]
    return {what: tuple(others) for what, *others in cells}


def write(rows):
    above = PAGE.read_text().partition(HEAD)[0]
    PAGE.write_text(above + HEAD + ''.join('| ' + ' | '.join((what, *cells)) + ' |\n' for what, cells in rows.items()))


class Refusal(Case):
    def told(self, what, job, reason, *words, condition='Waiting', do):
        """Waits until the job has the condition with the reason, whose message, as kubectl describes it, has all of the words:
        the replica, its exit code, what it said last. What to do begins with `do`. Makes the table's row."""
        def found():
            status = job.status()
            said = {c['type']: c for c in status.get('conditions', []) if c['status'] == 'True'}
            failed = said.get('Failed')
            if failed and (condition, reason) != ('Failed', failed['reason']):
                raise AssertionError(f'{job.name}: expected {condition}, {reason}, got: {failed}')
            if condition not in said or said[condition]['reason'] != reason:
                return None
            return all(word in said[condition]['message'] for word in words) and (said[condition], status.get('whatToDo', ''))
        said, advice = eventually(f'{condition}, {reason} with {words}', found, job.told)
        described = ' '.join(kubectl('-n', job.namespace, 'describe', 'tj', job.name).partition('\nStatus:')[2].split())
        for word in (reason, *words, ' '.join(advice.split())):
            self.assertIn(word, described)
        self.assertTrue(advice.startswith(do), f'what to do: expected {do}…, got: {advice}')
        ROWS[what] = (f'{condition}, `{reason}`', code(shortened(said['message'])), advice)
        return said
