#!/usr/bin/env python3
"""dashboards_test.py ROOT: the chart's dashboards are as scripts/dashboards writes them, ask only for series that the
operator or a worker has, and keep to rules that dashboard-linter has too (docs/rules of grafana/dashboard-linter)."""
import json
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else '.').resolve()
FILES = sorted((ROOT / 'helm/meshtrain/files/dashboards').glob('*.json'))
WORDS = {'sum', 'by', 'rate', 'increase', 'histogram_quantile', 'le', 'changes', 'label_values'}


def known_series():
    """Names that the sources give to metrics; a histogram has three of each."""
    names = set()
    for folder in ('runtime', 'worker', 'operator'):
        for path in (ROOT / folder).rglob('*.cc'):
            text = path.read_text()
            for name in re.findall(r'"((?:meshtrain|workqueue|rest_client|process|leader_election)_[a-z_]+)"', text):
                names |= {name, name + '_sum', name + '_count', name + '_bucket'}
    return names


class DashboardsTest(unittest.TestCase):
    def test_they_are_as_the_script_writes_them(self):
        run = subprocess.run([ROOT / 'scripts/dashboards', '--check'], capture_output=True, text=True, check=False)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertEqual(len(FILES), 4)

    def test_every_query_asks_for_series_that_there_are(self):
        known = known_series()
        self.assertIn('meshtrain_job_loss', known)
        asked = set()
        for file in FILES:
            board = json.loads(file.read_text())
            queries = [t['expr'] for p in board['panels'] for t in p['targets']]
            queries += [a['expr'] for a in board['annotations']['list']]
            queries += [v['definition'] for v in board['templating']['list'] if v['type'] == 'query']
            for query in queries:
                names = set(re.findall(r'\b((?:meshtrain|workqueue|rest_client|process|leader_election)_[a-z_]+)', query))
                self.assertTrue(names, query)
                self.assertLessEqual(names, known, f'{file.name}: {query}')
                self.assertEqual(query.count('('), query.count(')'), query)
                self.assertEqual(query.count('{'), query.count('}'), query)
                asked |= names
        self.assertGreater(len(asked), 25)

    def test_every_series_of_a_training_is_told_somewhere(self):
        header = (ROOT / 'runtime/telemetry/training_metrics.h').read_text()
        members = re.findall(r'^  (?:Counter|Gauge|Histogram) (\w+); +// (meshtrain_\w+)$', header, re.MULTILINE)
        self.assertGreater(len(members), 10)
        sources = ''.join(path.read_text() for folder in ('runtime', 'worker') for path in (ROOT / folder).rglob('*.cc'))
        for member, series in members:
            self.assertRegex(sources, rf'\b{member}\.(Add|Set|Observe)\(', f'nothing ever observes {series}')

    def test_alerts_ask_for_series_that_there_are_and_have_runbooks(self):
        known = known_series()
        text = (ROOT / 'helm/meshtrain/templates/prometheus-rule.yaml').read_text()
        alerts = re.findall(r'- alert: (\w+)', text)
        self.assertGreaterEqual(len(alerts), 6)
        runbooks = (ROOT / 'docs/alerts.md').read_text()
        for alert in alerts:
            self.assertIn(f'## {alert}\n', runbooks)
            self.assertIn(f'#{alert.lower()}', text)
        names = set(re.findall(r'\b((?:meshtrain|workqueue|leader_election)_[a-z_]+)', text))
        self.assertLessEqual(names, known | {'meshtrain_dev'}, names - known)

    def test_rules_of_the_linter(self):
        uids = set()
        for file in FILES:
            board = json.loads(file.read_text())
            uids.add(board['uid'])
            variables = {v['name']: v for v in board['templating']['list']}
            # template-datasource-rule: the data source is a variable, and the first.
            self.assertEqual(board['templating']['list'][0]['name'], 'datasource')
            self.assertEqual(variables['datasource']['query'], 'prometheus')
            self.assertFalse(board['editable'])
            for panel in board['panels']:
                where = f'{file.name}: {panel["title"]}'
                # panel-title-description-rule, panel-units-rule, panel-datasource-rule
                self.assertTrue(panel['title'] and panel['description'], where)
                self.assertTrue(panel['fieldConfig']['defaults']['unit'], where)
                self.assertEqual(panel['datasource']['uid'], '${datasource}', where)
                self.assertTrue(panel['targets'], where)
                for target in panel['targets']:
                    self.assertTrue(target['legendFormat'], where)
                    # target-rate-interval-rule, target-counter-agg-rule
                    for window in re.findall(r'rate\([^\[]*\[([^\]]+)\]', target['expr']):
                        self.assertEqual(window, '$__rate_interval', where)
                    for used in re.findall(r'\$(\w+)', target['expr']):
                        self.assertTrue(used == '__rate_interval' or used in variables, f'{where}: ${used}')
                    if re.search(r'_total\b', target['expr']):
                        self.assertRegex(target['expr'], r'rate\(|increase\(', where)
            # No two panels in one place.
            places = [(p['gridPos']['x'], p['gridPos']['y']) for p in board['panels']]
            self.assertEqual(len(set(places)), len(places), file.name)
        self.assertEqual(len(uids), len(FILES))


if __name__ == '__main__':
    unittest.main()
