"""The cluster that tests of this folder run in, and what they ask of it. scripts/kubernetes/node has started it, node_test.py
has said in the environment what it holds: MT_ROOT, MT_BIN, MT_VERSION, MT_DATA."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

ROOT, BIN = pathlib.Path(os.environ['MT_ROOT']), pathlib.Path(os.environ['MT_BIN'])
VERSION = os.environ['MT_VERSION']
STATE = pathlib.Path(os.environ['NODE_DIR'])
SYSTEM, NAMESPACE = 'meshtrain-system', 'ml'
# What `restricted` asks of a container whose image is not ours.
STRICT = {'allowPrivilegeEscalation': False, 'runAsNonRoot': True, 'capabilities': {'drop': ['ALL']},
          'seccompProfile': {'type': 'RuntimeDefault'}}
# Guards against a hang alone.
PATIENCE = 300


def run(*command, stdin=None, check=True):
    done = subprocess.run([str(word) for word in command], input=stdin, capture_output=True, text=True, check=False,
                          timeout=PATIENCE)
    if check and done.returncode != 0:
        raise AssertionError(f'{" ".join(map(str, command))}: {done.returncode}\n{done.stdout}{done.stderr}')
    return done.stdout if check else done


def kubectl(*command, stdin=None):
    return run('kubectl', *command, stdin=stdin)


def helm(*command):
    return run('helm', '--namespace', SYSTEM, *command)


def get(*what):
    """An object, or None where it is not there."""
    done = run('kubectl', 'get', *what, '-o', 'json', '--ignore-not-found')
    return json.loads(done) if done.strip() else None


def listed(*what):
    return json.loads(run('kubectl', 'get', *what, '-o', 'json'))['items']


def apply(*objects):
    kubectl('apply', '-f', '-', stdin=json.dumps({'apiVersion': 'v1', 'kind': 'List', 'items': objects}))


def on_node(node, *command):
    """Runs a command in the namespaces of a node."""
    return run(ROOT / 'scripts/kubernetes/node', 'on', node, *command)


def eventually(what, wanted, told=None):
    """Looks until wanted() gives something, which is returned."""
    end = time.monotonic() + PATIENCE
    while True:
        found = wanted()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f'waited in vain for {what}\n{told() if told else ""}')
        time.sleep(0.1)


def processes_of(pod, word=''):
    """The ids, on this machine, of what runs in a pod, found by its cgroup; with the word in its command line."""
    found = []
    for folder in pathlib.Path('/proc').iterdir():
        try:
            if folder.name.isdigit() and pod['metadata']['uid'] in (folder / 'cgroup').read_text() and \
                    word in (folder / 'cmdline').read_text():
                found.append(int(folder.name))
        except OSError:
            pass
    return found


class Job:
    """A TrainingJob in the namespace of the tests."""

    def __init__(self, manifest, namespace=NAMESPACE):
        self.manifest, self.namespace = manifest, namespace
        self.name = manifest['metadata']['name']

    def submit(self):
        kubectl('-n', self.namespace, 'create', '-f', '-', stdin=json.dumps(self.manifest))
        return self

    def object(self):
        return get('-n', self.namespace, 'tj', self.name)

    def status(self):
        return self.object().get('status', {})

    def condition(self, kind):
        """Of that type, where it is true."""
        for condition in self.status().get('conditions', []):
            if condition['type'] == kind and condition['status'] == 'True':
                return condition
        return None

    def step(self):
        """The last that the leader wrote; the status tells it later."""
        try:
            return max((step for step, _ in self.figures()), default=0)
        except (OSError, ValueError):  # not begun, or in the middle of a line
            return 0

    def pods(self):
        return listed('-n', self.namespace, 'pods', '-l', f'meshtrain.dev/job-name={self.name}')

    def pod(self, replica):
        return get('-n', self.namespace, 'pod', f'{self.name}-{replica}')

    def events(self):
        """[(type, reason, message)], oldest first."""
        items = listed('-n', self.namespace, 'events', '--field-selector', f'involvedObject.name={self.name}',
                       '--sort-by=.metadata.creationTimestamp')
        return [(e['type'], e['reason'], e['message']) for e in items]

    def told(self):
        """What one would look at when it does not go on."""
        return '\n'.join(run('kubectl', '-n', self.namespace, *words, check=False).stdout for words in (
            ['describe', 'tj', self.name], ['get', 'pods', '-o', 'wide'], ['get', 'events'],
            ['logs', '--prefix', '--tail=20', '-l', f'meshtrain.dev/job-name={self.name}']))

    def until(self, what, wanted):
        def looked():
            if what != 'its end':
                failed = self.condition('Failed')
                if failed:
                    raise AssertionError(f'{self.name} failed while waiting for {what}: {failed}\n{self.told()}')
            return wanted()
        return eventually(f'{what} of {self.name}', looked, self.told)

    def until_succeeded(self):
        return self.until('success', lambda: self.condition('Succeeded'))

    def until_step(self, step):
        """Trains, but has not ended."""
        self.until(f'step {step}', lambda: self.step() >= step)
        if self.condition('Succeeded'):
            raise AssertionError(f'{self.name} had ended before it was looked at: it is too short')

    def output(self):
        return STATE / 'claims/mnist-runs' / self.name

    def figures(self):
        return figures_of(self.output())

    def send(self, replica, number):
        """A signal to our program in a pod."""
        pids = processes_of(self.pod(replica), 'meshtrain-worker')
        assert pids, f'{self.name}-{replica}: expected a process, got: none'
        for pid in pids:
            os.kill(pid, number)

    def kill(self, replica):
        self.send(replica, signal.SIGKILL)

    def delete(self):
        kubectl('-n', self.namespace, 'delete', 'tj', self.name, '--ignore-not-found', '--wait=false')
        self.gone()

    def gone(self):
        eventually(f'the end of the pods of {self.name}', lambda: not self.pods(),
                   lambda: kubectl('-n', self.namespace, 'get', 'pods', '-o', 'wide'))
        shutil.rmtree(self.output(), ignore_errors=True)


def figures_of(folder):
    """What a leader wrote: {(step, name): value}, without times. What was written again, counts last."""
    figures = {}
    for line in (folder / 'metrics.jsonl').read_text().splitlines():
        said = json.loads(line)
        figures.update({(said['step'], name): value for name, value in said.items()
                        if name in ('loss', 'accuracy', 'val_loss', 'val_accuracy')})
    return figures


def example(name, **changes):
    """A manifest of deploy/examples, with other values at these paths (`spec__program__mesh`)."""
    manifest = json.loads(kubectl('create', '--dry-run=client', '--validate=false', '-o', 'json', '-f',
                                  ROOT / 'deploy/examples' / f'{name}.yaml'))
    manifest['metadata'].pop('namespace', None)
    for path, value in changes.items():
        *folders, last = path.split('__')
        at = manifest
        for folder in folders:
            at = at.setdefault(folder, {})
        at[last] = value
    return manifest


SMALL = ['flatten', {'dense': {'name': 'hidden', 'units': 32, 'activation': 'relu'}}, {'dense': {'name': 'logits', 'units': 10}}]


def small(name, **changes):
    """A model that costs little, of as many epochs of 40 steps as a test needs to meet it while it trains."""
    return mlp(name, **{'epochs': 30, 'spec__program__model': SMALL, **changes})


def mlp(name, chief=None, worker=None, workers=2, epochs=3, **changes):
    """The MLP of deploy/examples/mnist-mlp.yaml on a chief and workers, one device each."""
    return example('mnist-mlp', metadata={'name': name}, spec__replicaSpecs={
        'chief': {'replicas': 1, 'restartPolicy': 'ExitCode', **(chief or {})},
        'worker': {'replicas': workers, 'restartPolicy': 'ExitCode', **(worker or {})},
    }, spec__program__mesh={'batch': workers + 1}, spec__program__data__uneven=True, spec__program__train={'epochs': epochs},
        **changes)


def lone(name, replica=None, **changes):
    """The small model, one process and one epoch: enough where something is wrong with it."""
    return example('mnist-mlp', **{
        'metadata': {'name': name}, 'spec__replicaSpecs': {'worker': {'replicas': 1, 'restartPolicy': 'ExitCode', **(replica or {})}},
        'spec__program__model': SMALL, 'spec__program__mesh': {'batch': 1}, 'spec__program__train': {'epochs': 1}, **changes})


def template(container=None, **pod):
    """A replica's template that adds to our image's."""
    return {'template': {'spec': {'containers': [{'name': 'trainer', **(container or {})}], **pod}}}


def placed(node):
    """A replica on that node."""
    return template(nodeSelector={'kubernetes.io/hostname': node})


def upgrade(*settings):
    """The chart with other values; the operator is another process then."""
    helm('upgrade', 'meshtrain', ROOT / 'helm/meshtrain', '--reuse-values', '--wait', '--timeout', '120s', *settings)


def claim(name, namespace=NAMESPACE):
    """A claim for everybody on all nodes, as a network's file system gives it."""
    folder = STATE / 'claims' / name
    folder.mkdir(parents=True, exist_ok=True)
    any_node = [{'matchExpressions': [{'key': 'kubernetes.io/os', 'operator': 'In', 'values': ['linux']}]}]
    apply({'apiVersion': 'v1', 'kind': 'PersistentVolume', 'metadata': {'name': name}, 'spec': {
        'accessModes': ['ReadWriteMany'], 'capacity': {'storage': '1Gi'}, 'storageClassName': '',
        'claimRef': {'namespace': namespace, 'name': name}, 'local': {'path': str(folder)},
        'nodeAffinity': {'required': {'nodeSelectorTerms': any_node}}}},
        {'apiVersion': 'v1', 'kind': 'PersistentVolumeClaim', 'metadata': {'name': name, 'namespace': namespace}, 'spec': {
            'accessModes': ['ReadWriteMany'], 'storageClassName': '', 'resources': {'requests': {'storage': '1Gi'}}}})
    eventually(f'the claim {name}', lambda: get('-n', namespace, 'pvc', name)['status'].get('phase') == 'Bound')
    return folder


class Case(unittest.TestCase):
    """Each test's jobs go with it."""

    def submit(self, manifest, namespace=NAMESPACE):
        job = Job(manifest, namespace)
        self.addCleanup(job.delete)
        return job.submit()

    def alone(self, manifest):
        """The figures that one process gives of the same program."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=STATE))
        (folder / 'job.json').write_text(json.dumps({**manifest, 'spec': {
            **manifest['spec'], 'replicaSpecs': {'worker': {'replicas': 1}}}}))
        (folder / 'data').symlink_to(STATE / 'claims/mnist-data')
        done = subprocess.run([BIN / 'meshtrain', 'run', '-f', 'job.json', '--output', 'out'], cwd=folder, check=False,
                              capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return figures_of(folder / 'out')

    def assert_same_figures(self, job):
        """A job's numbers are those of one process, whatever has happened to it."""
        wanted, got = self.alone(job.manifest), job.figures()
        self.assertEqual(wanted.keys(), got.keys())
        for key, value in wanted.items():
            self.assertAlmostEqual(got[key], value, delta=max(1e-3, 1e-2 * abs(value)), msg=f'{job.name}: {key}')
