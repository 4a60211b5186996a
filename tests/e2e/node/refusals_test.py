"""Failures that only a node can cause, none by a written status: `kubectl describe tj` names the replica, the exit code where
there is one, the reason, what was said last, and what to do. The table of them all is printed; MT_NODE_TABLE=FILE keeps it, for
docs/reference/node.md."""
import os
import re
import subprocess

from cluster import ROOT, STATE, STRICT, Case, claim, eventually, get, kubectl, on_node, small

TABLE = []


def template(container=None, **pod):
    """One that adds to our image's."""
    return {'template': {'spec': {'containers': [{'name': 'trainer', **(container or {})}], **pod}}}


class Refusal(Case):
    @classmethod
    def tearDownClass(cls):
        rows = ''.join('| ' + ' | '.join(row) + ' |\n' for row in TABLE)
        print(rows)
        if os.environ.get('MT_NODE_TABLE'):
            with open(os.environ['MT_NODE_TABLE'], 'a', encoding='utf-8') as file:
                file.write(rows)
        TABLE.clear()

    def told(self, what, job, reason, *words, condition='Waiting', do=''):
        """Waits for the condition with the reason; all of the words stand in what kubectl describes, and what to do: `do`."""
        def found():
            said = {c['type']: c for c in job.status().get('conditions', []) if c['status'] == 'True'}
            failed = said.get('Failed')
            if failed and (condition, reason) != ('Failed', failed['reason']):
                raise AssertionError(f'{job.name}: expected {condition}, {reason}, got: {failed}')
            return condition in said and said[condition]['reason'] == reason and said[condition]
        said = eventually(f'{condition}, {reason}', found, job.told)
        described = ' '.join(kubectl('-n', job.namespace, 'describe', 'tj', job.name).split())
        for word in words:
            self.assertIn(word, described)
        advice = job.status().get('whatToDo', '')
        self.assertTrue(advice, job.told())
        self.assertIn(do, advice)
        TABLE.append([what, f'{condition}, `{reason}`', f'`{self.shortened(said["message"])}`', advice])
        return said

    @staticmethod
    def shortened(message):
        return re.sub(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', 'UID', message).replace('|', '\\|')


class FromOurImage(Refusal):
    def test_an_image_that_cannot_be_pulled(self):
        job = self.submit(small('unpulled', worker=template({'image': 'registry.invalid/meshtrain-worker:1', 'securityContext': STRICT})))
        self.told('an image that no registry gives', job, 'ImagePull', 'unpulled-worker-', 'registry.invalid/meshtrain-worker:1')

    def test_a_plan_that_needs_more_memory_than_the_limit(self):
        model = ['flatten', {'dense': {'name': 'hidden', 'units': 30000}}, {'dense': {'name': 'logits', 'units': 10}}]
        job = self.submit(small('greedy', workers=1, spec__program__model=model,
                                worker=template({'resources': {'limits': {'memory': '96Mi'}}})))
        self.told('a plan that needs more memory than the limit', job, 'PodFailed', 'greedy-worker-0', '78',
                  '100663296 bytes (the container', condition='Failed')

    def test_memory(self):
        """A plan that fits, in a container in which the process itself does not."""
        job = self.submit(small('starved', workers=1, spec__runPolicy={'backoffLimit': 0},
                                worker=template({'resources': {'limits': {'memory': '12Mi'}}})))
        self.told('a process that needs more memory than the limit', job, 'BackoffLimitExceeded', 'starved-worker-0', '137',
                  'OOMKilled', condition='Failed')

    def test_a_program_of_another_machine(self):
        job = self.submit(small('foreign', spec__runPolicy={'backoffLimit': 0}, worker=template(
            {'image': 'localhost/foreign:1', 'securityContext': STRICT})))
        self.told('an image for another architecture', job, 'PodFailed', 'foreign-worker-', 'exec format error',
                  condition='Failed', do='built for the architecture')

    def test_a_program_that_is_not_there(self):
        job = self.submit(small('nothing', spec__runPolicy={'backoffLimit': 0},
                                worker=template({'command': ['/usr/bin/no-such-program']})))
        self.told('a command that the image lacks', job, 'BackoffLimitExceeded', 'nothing-worker-', '128', 'StartError',
                  '/usr/bin/no-such-program', condition='Failed')

    def test_a_volume_whose_secret_is_missing(self):
        job = self.submit(small('unmounted', worker=template(
            {'volumeMounts': [{'name': 'extra', 'mountPath': '/extra'}]},
            volumes=[{'name': 'extra', 'secret': {'secretName': 'no-such-secret'}}])))
        self.told('a Secret to mount that is missing', job, 'SlowStart', 'unmounted-worker-')
        # Mended while it waits.
        kubectl('-n', job.namespace, 'create', 'secret', 'generic', 'no-such-secret')
        self.addCleanup(kubectl, '-n', job.namespace, 'delete', 'secret', 'no-such-secret')
        job.until_succeeded()

    def test_a_variable_whose_config_map_is_missing(self):
        job = self.submit(small('unset', worker=template({'envFrom': [{'configMapRef': {'name': 'no-such-map'}}]})))
        self.told('a ConfigMap for variables that is missing', job, 'ContainerWaits', 'unset-worker-', 'no-such-map',
                  'CreateContainerConfigError')

    def test_an_image_of_roots(self):
        job = self.submit(small('roots', worker=template({'image': 'localhost/roots:1', 'securityContext': STRICT})))
        self.told("an image that would run as root", job, 'ContainerWaits', 'roots-worker-', 'runAsNonRoot', do='another user than root')

    def test_data_that_is_not_there(self):
        images = {'images': 'data/none.gz', 'labels': 'data/train-labels-idx1-ubyte.gz'}
        job = self.submit(small('blind', spec__program__data__train={'idx': images}))
        self.told('a file of data that is missing', job, 'PodFailed', 'blind-', '66', 'data/none.gz', condition='Failed')

    def test_a_disk_that_is_full(self):
        folder = claim('tiny-runs')
        for node in (1, 2):
            on_node(node, 'mount', '-t', 'tmpfs', '-o', 'size=256k,mode=0777', 'tmpfs', folder)
            self.addCleanup(on_node, node, 'umount', folder)
        job = self.submit(small('full', spec__runPolicy={'backoffLimit': 0}, spec__output={'claim': 'tiny-runs'}))
        self.told('an output claim that is full', job, 'BackoffLimitExceeded', 'full-', '74', 'No space left on device', condition='Failed')


class Device(Refusal):
    """A device plugin that offers what it does not give."""

    def setUp(self):
        self.refuses = STATE / 'refuses'
        self.refuses.touch()
        self.plugin = subprocess.Popen([ROOT / 'scripts/kubernetes/node', 'on', '2', 'device-plugin', 'example.com/device', '1',
                                        str(self.refuses)])
        self.addCleanup(self.plugin.wait)
        self.addCleanup(self.plugin.kill)
        eventually('the device of node-2', lambda: get('node', 'node-2')['status']['allocatable'].get('example.com/device') == '1')

    def test_it_is_told_and_the_job_goes_on_when_there_are_devices(self):
        job = self.submit(small('deviceless', workers=1, worker=template({'resources': {
            'limits': {'example.com/device': '1'}}})))
        refused = eventually('a refusal', lambda: [message for kind, reason, message in job.events()
                                                   if kind == 'Warning' and 'deviceless-worker-0' in message], job.told)
        described = kubectl('-n', job.namespace, 'describe', 'tj', job.name)
        self.assertIn('UnexpectedAdmissionError', described)
        self.assertIsNone(job.condition('Failed'))
        TABLE.append(['a device plugin that gives none of its devices', 'event `JobRestarting`', f'`{refused[0]}`',
                      'Nothing: it counts against no limit, and is tried again.'])
        self.refuses.unlink()
        job.until_succeeded()
        self.assertEqual({one['counted'] for one in job.status()['recovery']['recent']}, {False}, job.told())
