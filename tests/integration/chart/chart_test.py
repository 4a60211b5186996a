#!/usr/bin/env python3
"""chart_test.py ROOT: what the chart renders, held against the schemas of a real API server by kubeconform, with the kinds
of the Prometheus operator; and its alerts, by promtool. Leaves with 77 where the tools were not built or unpacked
(scripts/test does)."""
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
HERE = pathlib.Path(__file__).resolve().parent

# Each option off and on.
OPTIONS = {
    'scope': ('cluster', 'namespace'),
    'crds.enabled': ('true', 'false'),
    'admissionPolicy.enabled': ('true', 'false'),
    'dashboards.enabled': ('false', 'true'),
    'prometheusRule.enabled': ('false', 'true'),
    'metrics.podMonitor.enabled': ('false', 'true'),
    'metrics.serviceMonitor.enabled': ('false', 'true'),
    'networkPolicies.enabled': ('false', 'true'),
    'openShift': ('false', 'true'),
    'replicas': ('1', '3'),
    'gangScheduler': ('none', 'volcano'),
}
# Values that stand beside: what people add to objects.
MORE = """
imagePullSecrets: [{name: registry}]
workerImage: registry.example/meshtrain-worker:1
clusterDomain: cluster.local
security: none
queue: kueue
priorityClassName: high
nodeSelector: {pool: system}
tolerations: [{key: dedicated, operator: Exists}]
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
  {matchExpressions: [{key: arch, operator: In, values: [amd64]}]}]}}}
topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule,
  labelSelector: {matchLabels: {app.kubernetes.io/name: meshtrain}}}]
podAnnotations: {a: b}
podLabels: {team: ml}
serviceAccount: {name: runner, annotations: {a: b}}
dashboards: {namespace: monitoring, labels: {grafana_dashboard: "1"}, annotations: {folder: ml}}
metrics: {podMonitor: {labels: {release: prometheus}}, serviceMonitor: {labels: {release: prometheus}, interval: 15s}}
prometheusRule: {labels: {release: prometheus}}
networkPolicies: {scrapers: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]}
"""


def settings(*names):
    script = '. "$1/scripts/kubernetes/env.sh"; shift; for name; do printf "%s\\n" "${!name}"; done'
    said = subprocess.run(['bash', '-c', script, '_', ROOT, *names], capture_output=True, text=True, check=True)
    return dict(zip(names, said.stdout.splitlines()))


ENV = settings('KUBE_BIN', 'KUBE_VERSION', 'KUBECONFORM_PREFIX', 'MONITORING_PREFIX', 'PROMETHEUS_BIN')
KUBECONFORM = pathlib.Path(ENV['KUBECONFORM_PREFIX'], 'bin/kubeconform')
MONITORING = pathlib.Path(ENV['MONITORING_PREFIX'], 'crds')
PROMTOOL = pathlib.Path(ENV['PROMETHEUS_BIN'], 'promtool')


def run(*command, text=None, check=True):
    done = subprocess.run([str(word) for word in command], input=text, capture_output=True, text=True, timeout=120, check=False)
    if check and done.returncode != 0:
        raise AssertionError(f'{command[:3]}: left with {done.returncode}: {done.stdout[-3000:]}{done.stderr[-3000:]}')
    return done


def render(values, *more, release='meshtrain', namespace='meshtrain-system'):
    flags = [word for pair in values.items() for word in ('--set', '='.join(pair))]
    return run(f'{ENV["KUBE_BIN"]}/helm', 'template', release, ROOT / 'helm/meshtrain', '--namespace', namespace,
               '--kube-version', ENV['KUBE_VERSION'], *flags, *more).stdout


def combinations():
    """Plackett and Burman's twelve: any two of eleven options meet in all their four combinations, three times each."""
    row = [0, 0, 1, 0, 0, 0, 1, 1, 1, 0, 1]
    rows = [row[-i:] + row[:-i] for i in range(11)] + [[1] * 11]
    return [{name: OPTIONS[name][bit] for name, bit in zip(OPTIONS, bits)} for bits in rows]


def below(schema):
    """A schema and every one in it."""
    yield schema
    inner = [schema.get('items'), schema.get('additionalProperties'), *schema.get('properties', {}).values()]
    for part in inner + schema.get('allOf', []):
        if isinstance(part, dict):
            yield from below(part)


def strict(definitions):
    """The server's definitions as a validator reads them: what they do not know is refused."""
    for name, definition in definitions.items():
        for part in list(below(definition)):
            number = part.get('format') == 'int-or-string'
            if number or (part is definition and name.endswith('.Quantity')):
                part.pop('type', None)
                part['anyOf'] = [{'type': 'string'}, {'type': 'integer' if number else 'number'}]
            keeps = part.get('x-kubernetes-preserve-unknown-fields')
            if 'properties' in part and 'additionalProperties' not in part and not keeps:
                part['additionalProperties'] = False


def write_schemas(definitions, folder):
    strict(definitions)
    needs = {name: {part['$ref'].rsplit('/', 1)[1] for part in below(definition) if '$ref' in part}
             for name, definition in definitions.items()}
    for name, definition in definitions.items():
        kinds = definition.get('x-kubernetes-group-version-kind', [])
        if len(kinds) != 1:
            continue
        used, more = set(), {name}
        while more:
            used |= more
            more = set().union(*(needs[other] for other in more)) - used
        kind = kinds[0]
        group = [kind['group'].split('.')[0]] if kind['group'] else []
        file = '-'.join([kind['kind'].lower(), *group, kind['version']]) + '.json'
        (folder / file).write_text(json.dumps({'$ref': f'#/definitions/{name}',
                                               'definitions': {other: definitions[other] for other in used}}))


class SchemasTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = pathlib.Path(scratch.name)
        for file in [*MONITORING.glob('*.yaml'), ROOT / 'helm/meshtrain/files/crd.yaml']:
            run('kubectl', 'apply', '--server-side', '-f', file)
        # A kind is in the server's description a moment after it was made.
        for _ in range(100):
            definitions = json.loads(run('kubectl', 'get', '--raw', '/openapi/v2').stdout)['definitions']
            kinds = {kind['kind'] for d in definitions.values() for kind in d.get('x-kubernetes-group-version-kind', [])}
            if {'PodMonitor', 'ServiceMonitor', 'PrometheusRule', 'TrainingJob'} <= kinds:
                break
            time.sleep(0.3)
        else:
            raise AssertionError(f'kinds that never came: {sorted(kinds)}')
        (cls.folder / 'schemas').mkdir()
        write_schemas(definitions, cls.folder / 'schemas')

    def conform(self, text):
        location = f'{self.folder}/schemas/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json'
        return run(KUBECONFORM, '-strict', '-summary', '-output', 'json', '-schema-location', location, '-', text=text,
                   check=False)

    def test_every_combination_of_two_options(self):
        pairs = set()
        kinds = set()
        (self.folder / 'more.yaml').write_text(MORE)
        for i, values in enumerate(combinations()):
            pairs |= set(itertools.combinations(values.items(), 2))
            text = render(values, *(['-f', str(self.folder / 'more.yaml')] if i % 2 else []))
            done = self.conform(text)
            self.assertEqual(done.returncode, 0, f'{values}: {done.stdout}{done.stderr}')
            said = json.loads(done.stdout)['summary']
            self.assertEqual((said['invalid'], said['errors'], said['skipped']), (0, 0, 0), said)
            self.assertGreater(said['valid'], 5)
            kinds |= set(re.findall(r'^kind: (\w+)', text, re.M))
        self.assertEqual(len(pairs), 11 * 10 // 2 * 4, 'any two options, in all their four ways')
        self.assertLessEqual({'Deployment', 'ClusterRole', 'Role', 'CustomResourceDefinition', 'ValidatingAdmissionPolicy',
                              'ConfigMap', 'NetworkPolicy', 'PodMonitor', 'ServiceMonitor', 'PrometheusRule',
                              'PodDisruptionBudget'}, kinds)

    def test_a_list_of_namespaces(self):
        every = {name: values[1] for name, values in OPTIONS.items()} | {'namespaces': '{ml,bio}'}
        (self.folder / 'list.yaml').write_text(MORE)
        done = self.conform(render(every, '-f', str(self.folder / 'list.yaml')))
        said = json.loads(done.stdout)['summary']
        self.assertEqual((done.returncode, said['invalid'], said['errors'], said['skipped']), (0, 0, 0, 0), done.stdout)

    def test_all_at_once_is_taken_by_the_server(self):
        run('kubectl', 'create', 'namespace', 'meshtrain-system')
        run('kubectl', 'create', 'namespace', 'monitoring')
        (self.folder / 'all.yaml').write_text(MORE)
        every = {name: values[1] for name, values in OPTIONS.items()} | {'scope': 'cluster'}
        text = render(every, '--no-hooks', '-f', str(self.folder / 'all.yaml'))
        said = run('kubectl', 'apply', '--server-side', '--dry-run=server', '-f', '-', text=text)
        self.assertNotIn('Warning', said.stderr)
        for kind in ('prometheusrule', 'podmonitor', 'servicemonitor'):
            self.assertIn(f'{kind}.monitoring.coreos.com/', said.stdout)

    def test_examples_and_the_job_of_helm_test(self):
        shown = render({'workerImage': 'w:1'}, '--show-only', 'templates/tests/job.yaml')
        test_job = re.search(r'^  job\.yaml: \|-?\n((?:    .*\n|\n)+)', shown, re.M).group(1)
        jobs = [re.sub('^    ', '', test_job, flags=re.M)]
        jobs += [file.read_text() for file in sorted((ROOT / 'deploy/examples').glob('*.yaml'))]
        self.assertGreater(len(jobs), 5)
        for text in jobs:
            done = self.conform(text)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(json.loads(done.stdout)['summary']['valid'], 1)

    def test_of_the_test(self):
        """What is wrong in one place is found."""
        good = render({}, '--no-hooks')
        for wrong in (good.replace('serviceAccountName:', 'serviceAcountName:'), good.replace('replicas: 1', 'replicas: one'),
                      render({'metrics.podMonitor.enabled': 'true'}, '--no-hooks').replace('podMetricsEndpoints:', 'endpoints:')):
            self.assertNotEqual(wrong, good)
            done = self.conform(wrong)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertEqual(json.loads(done.stdout)['summary']['invalid'], 1)


class RenderTest(unittest.TestCase):
    """What needs no server."""

    def render(self, text, *more, **where):
        """With values as a file says them."""
        with tempfile.NamedTemporaryFile('w', suffix='.yaml') as values:
            values.write(text)
            values.flush()
            return render({}, '-f', values.name, *more, **where)

    def test_the_commands_of_the_docs(self):
        pages = [ROOT / 'README.md', *(ROOT / 'docs').rglob('*.md')]
        commands = [command for page in pages
                    for command in re.findall(r'^    helm install ((?:.*\\\n)*.*)', page.read_text(), re.M)]
        self.assertGreaterEqual(len(commands), 2)
        for command in commands:
            words = command.replace('\\\n', ' ').split()
            words[words.index('helm/meshtrain')] = ROOT / 'helm/meshtrain'
            text = run(f'{ENV["KUBE_BIN"]}/helm', 'template', '--kube-version', ENV['KUBE_VERSION'], *words).stdout
            if 'image.tag=1' in command:
                self.assertEqual(set(re.findall(r'^ +image: (.*)', text, re.M)), {'"meshtrain-operator:1"'})

    def test_namespaces(self):
        """A list, of which one namespace is one of one: rights, watches, policy, scraping and alerts."""
        more = 'metrics: {podMonitor: {enabled: true}}\nprometheusRule: {enabled: true}\ncrds: {enabled: false}\n'
        for text, names in (('', ['home']), ('namespaces: []', ['home']), ('namespaces: [ml]', ['ml']),
                            ('namespaces: [ml, home, "7"]', ['ml', 'home', '7'])):
            shown = self.render(f'scope: namespace\n{text}\n{more}', namespace='home')
            roles = re.findall(r'^kind: (\w+)\nmetadata:\n  name: (\S+)\n  namespace: "?([\w-]+)', shown, re.M)
            self.assertEqual([where for kind, name, where in roles if (kind, name) == ('Role', 'meshtrain')], names)
            self.assertEqual([where for kind, name, where in roles if (kind, name) == ('RoleBinding', 'meshtrain')], names)
            self.assertIn(('Lease', 'meshtrain', 'home'), roles)
            self.assertEqual(re.findall(r'- --namespace=(.*)', shown), names)
            self.assertEqual(re.findall(r'^kind: ClusterRole\nmetadata:\n  name: (.*)', shown, re.M), ['meshtrain.home-crd'])
            policy = 'operator: In, values: ' + json.dumps(names, separators=(',', ':'))
            self.assertEqual(shown.count(policy), 2, 'both policies')
            self.assertIn('namespaceSelector: {matchNames: ' + json.dumps(names, separators=(',', ':')) + '}', shown)
            self.assertIn(f'namespace=~"{"|".join(names)}"', shown)
            test = names[0] if 'home' not in names else 'home'
            self.assertEqual(re.findall(r'kind: TrainingJob\n    metadata:\n.*\n      namespace: "(.*)"', shown), [test])
            self.assertIn(('ConfigMap', 'meshtrain-test-data', test), roles)
            self.assertIn(('Pod', 'meshtrain-test', 'home'), roles)
        for text, message in (('namespaces: [ml]', 'namespaces: expected scope: namespace beside a list'),
                              ('scope: namespace\nnamespaces: ml', "at '/namespaces': got string, want array"),
                              ('scope: namespace\nnamespaces: [ml, ml]', "at '/namespaces'"),
                              ('scope: namespace\nnamespaces: [""]', "at '/namespaces/0'")):
            with self.assertRaisesRegex(AssertionError, message):
                self.render(text)

    def test_a_tag_of_digits_alone(self):
        own = re.search('^appVersion: (.*)', (ROOT / 'helm/meshtrain/Chart.yaml').read_text(), re.M).group(1)
        for text, tag in (('1', '1'), ('0', '0'), ('1700000000', '1700000000'), ('"1.10"', '1.10'), ('""', own), ('null', own)):
            images = re.findall(r'^ +image: (.*)', self.render(f'image: {{tag: {text}}}'), re.M)
            self.assertEqual(images, [f'"meshtrain-operator:{tag}"'] * 2, text)
        # 1.10 is the number 1.1.
        with self.assertRaisesRegex(AssertionError, '/image/tag'):
            self.render('image: {tag: 1.10}')

    def test_nobody_reaches_the_operator_but_scrapers(self):
        def policy(text):
            return self.render(f'networkPolicies: {{enabled: true, scrapers: {text}}}', '--show-only',
                               'templates/network-policy.yaml').partition('  policyTypes: [Ingress]\n')[2]
        self.assertEqual(policy('[]'), '  ingress: []\n', 'a rule without peers would be for everybody')
        self.assertEqual(policy('null'), policy('[]'))
        self.assertEqual(policy('[{ipBlock: {cidr: 10.0.0.0/8}}]'),
                         '  ingress:\n  - ports:\n    - {protocol: TCP, port: 8080}\n'
                         '    from:\n    - ipBlock:\n        cidr: 10.0.0.0/8\n')

    def test_scrapers_are_the_same_for_the_operator_and_for_jobs(self):
        """A podSelector alone means the policy's own namespace: the release's for the operator's, the job's for a job's."""
        text = self.render("""networkPolicies: {enabled: true, scrapers: [
          {podSelector: {matchLabels: {app: prometheus}}}, {podSelector: {}, namespaceSelector: null},
          {podSelector: {}, namespaceSelector: {}}, {namespaceSelector: {matchLabels: {team: ml}}},
          {ipBlock: {cidr: 10.0.0.0/8}}]}""", '--show-only', 'templates/deployment.yaml', namespace='ops')
        peers = json.loads(json.loads(re.search(r'- ("--network-policy-peers=.*")', text).group(1)).partition('=')[2])
        here = {'matchLabels': {'kubernetes.io/metadata.name': 'ops'}}
        self.assertEqual(peers[0]['namespaceSelector'], here)
        self.assertEqual(peers[1:], [{'podSelector': {'matchLabels': {'app': 'prometheus'}}, 'namespaceSelector': here},
                                     {'podSelector': {}, 'namespaceSelector': here},
                                     {'podSelector': {}, 'namespaceSelector': {}},
                                     {'namespaceSelector': {'matchLabels': {'team': 'ml'}}},
                                     {'ipBlock': {'cidr': '10.0.0.0/8'}}])

    def test_what_is_taken_away_leaves_nothing(self):
        for text in ('dashboards: {enabled: true, labels: null, annotations: null}',
                     'metrics: {podMonitor: {enabled: true, labels: null}, serviceMonitor: {enabled: true, labels: null}}',
                     'prometheusRule: {enabled: true, labels: null}', 'podLabels: null\npodAnnotations: null',
                     'networkPolicies: {enabled: true, scrapers: null}', 'serviceAccount: {annotations: null}'):
            self.assertNotRegex(self.render(text, '--set', 'crds.enabled=false'), r'(?m)^ *null$', text)

    def test_the_job_of_helm_test_has_a_name_that_its_pods_can_bear(self):
        for release in ('meshtrain', 'm' * 53, 'meshtrain-' + 'm' * 43, 'meshtrain-' + 'm' * 24 + '-' + 'm' * 18):
            text = render({}, '--show-only', 'templates/tests/job.yaml', release=release)
            name = re.search(r'^    kind: TrainingJob\n    metadata:\n      name: (.*)', text, re.M).group(1)
            self.assertRegex(name, r'^[a-z]([-a-z0-9]*[a-z0-9])?-test-1-[a-z0-9]{5}$')
            self.assertNotIn('--', name)
            # With a revision of five digits, too.
            self.assertLessEqual(len(name + '0000-worker-0'), 63, name)

    def test_no_two_releases_share_what_belongs_to_no_namespace(self):
        def shared(release, namespace):
            text = render({'scope': 'namespace', 'crds.enabled': 'false'}, release=release, namespace=namespace)
            objects = [re.search(r'^kind: (.*)\nmetadata:\n  name: (.*)\n(  namespace:)?', part, re.M).groups()
                       for part in text.split('\n---\n')]
            return {(kind, name) for kind, name, spaced in objects if not spaced}
        ours, theirs = shared('meshtrain', 'b-c'), shared('meshtrain-b', 'c')
        self.assertEqual({kind for kind, _ in ours}, {'ClusterRole', 'ClusterRoleBinding', 'ValidatingAdmissionPolicy',
                                                      'ValidatingAdmissionPolicyBinding'})
        self.assertFalse(ours & theirs)


class AlertsTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def rules(self, values, name, **where):
        """Renders them into the file of that name."""
        text = render(values | {'prometheusRule.enabled': 'true'}, '--show-only', 'templates/prometheus-rule.yaml', **where)
        groups = text[text.index('\nspec:\n') + len('\nspec:\n'):]
        (self.folder / name).write_text(groups)
        run(PROMTOOL, 'check', 'rules', self.folder / name)
        return groups

    def promtool_test(self, name, check=True):
        (self.folder / name).write_text((HERE / name).read_text())
        return run(PROMTOOL, 'test', 'rules', self.folder / name, check=check)

    def test_each_fires_when_it_should_and_not_before(self):
        groups = self.rules({}, 'rules.yaml')
        tests = (HERE / 'alerts_test.yaml').read_text()
        for alert in re.findall(r'- alert: (\w+)', groups):
            self.assertRegex(tests, rf'alertname: {alert}\n    exp_alerts:\n    - exp_labels', f'{alert} is seen to fire')
            self.assertIn(f'alertname: {alert}, exp_alerts: []', tests, f'{alert} is seen not to fire')
        self.promtool_test('alerts_test.yaml')
        # Of the test: an alert that never fires fails it.
        (self.folder / 'rules.yaml').write_text(groups.replace('> 0\n', '> 1e9\n'))
        self.assertNotEqual(self.promtool_test('alerts_test.yaml', check=False).returncode, 0)

    def test_each_leads_to_what_the_docs_say_of_it(self):
        headings = re.findall(r'^## (.*)$', (ROOT / 'docs/alerts.md').read_text(), re.M)
        anchors = {re.sub('[^a-z0-9 -]', '', heading.lower()).replace(' ', '-') for heading in headings}
        for values, page in (({}, 'docs/alerts.md'),
                             ({'prometheusRule.runbookUrl': 'https://docs.example/alerts.html'}, 'https://docs.example/alerts.html')):
            groups = self.rules(values, 'rules.yaml')
            alerts, urls = re.findall(r'- alert: (\w+)', groups), re.findall(r'runbook_url: (.*)', groups)
            self.assertEqual(urls, [f'{page}#{alert.lower()}' for alert in alerts])
            self.assertLessEqual({url.partition('#')[2] for url in urls}, anchors)
        self.assertEqual(anchors, {alert.lower() for alert in alerts}, 'what no alert leads to')

    def test_of_two_releases_each_tells_of_itself(self):
        for namespace in ('ml', 'bio'):
            groups = self.rules({'scope': 'namespace'}, f'{namespace}.yaml', namespace=namespace)
        tests = (HERE / 'releases_test.yaml').read_text()
        for alert in re.findall(r'- alert: (\w+)', groups):
            self.assertIn(f'alertname: {alert}\n', tests)
        self.promtool_test('releases_test.yaml')


def main():
    needed = {pathlib.Path(ENV['KUBE_BIN'], 'kube'): 'scripts/kubernetes/build',
              KUBECONFORM: 'scripts/kubernetes/build-peers kubeconform',
              MONITORING: 'scripts/kubernetes/build-peers monitoring',
              PROMTOOL: 'scripts/install-prometheus'}
    missing = [f'{path} ({how} makes it)' for path, how in needed.items() if not path.exists()]
    if missing:
        print('not run, since these are not there:', *missing, sep='\n  ')
        return 77
    if 'MESHTRAIN_CLUSTER_DIR' not in os.environ:
        cluster = ROOT / 'scripts/kubernetes/cluster'
        os.execv(cluster, [str(cluster), 'run', '--', sys.executable, __file__, str(ROOT)])
    return 0 if unittest.main(exit=False, verbosity=2).result.wasSuccessful() else 1


if __name__ == '__main__':
    sys.exit(main())
