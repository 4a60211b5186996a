"""Jobs of our image in which something is wrong, each cause a real one and no status written by hand: `kubectl describe tj` names
the replica, the exit code where there is one, the reason, what was said last, and what to do."""
import base64
import gzip
import signal
import subprocess

from cluster import (NAMESPACE, ROOT, STATE, STRICT, apply, claim, eventually, example, get, kubectl, lone, on_node, small,
                     template)
from table import Refusal

ONCE = {'backoffLimit': 0}
SERVED = 2222  # where the processes of a job meet
FROM_ITS_CHECKPOINT = 'Where that passes, a higher `runPolicy.backoffLimit` goes on from the last checkpoint.'


def secret(name, **texts):
    apply({'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': name, 'namespace': NAMESPACE},
           'data': {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}})


class FromTheApiServer(Refusal):
    """No pod is made, or none is placed."""

    def test_a_program_with_a_mistake(self):
        job = self.submit(lone('misspelt', spec__program__model=['flatten', {'dense': {'name': 'logits', 'unit': 10}}]))
        self.told('a program with a mistake', job, 'InvalidSpec', 'spec.program.model[1]', '`units`', condition='Failed',
                  do='Mend the manifest as the message says.')
        self.assertEqual(job.pods(), [])

    def test_a_quota(self):
        apply({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'tight'}},
              {'apiVersion': 'v1', 'kind': 'ResourceQuota', 'metadata': {'name': 'team', 'namespace': 'tight'},
               'spec': {'hard': {'pods': '0'}}})
        self.addCleanup(kubectl, 'delete', 'namespace', 'tight')
        eventually('the quota', lambda: get('-n', 'tight', 'resourcequota', 'team').get('status', {}).get('used'))
        job = self.submit(lone('crowd'), 'tight')
        self.told('a quota that is used up', job, 'QuotaExceeded', 'crowd-worker-0', 'exceeded quota: team',
                  do='Free or raise the quota, or ask for less.')

    def test_pod_security(self):
        job = self.submit(lone('insecure', template({'image': 'localhost/roots:1'})))
        self.told('a pod that the namespace holds insecure', job, 'Forbidden', 'insecure-worker-0', 'violates PodSecurity "restricted',
                  'allowPrivilegeEscalation', do="Set what the message names in the template's securityContext")

    def test_more_than_any_node_has(self):
        job = self.submit(lone('huge', template({'resources': {'requests': {'cpu': '1000'}}})))
        self.told('more processors than a node has', job, 'Unschedulable', 'huge-worker-0', '2 Insufficient cpu',
                  do='Add or free nodes with what the message says is missing, or ask for less.')

    def test_a_claim_that_nobody_made(self):
        job = self.submit(lone('claimless', spec__claims=[{'name': 'no-such-claim', 'path': 'data'}]))
        self.told('a claim that nobody made', job, 'Unschedulable', 'claimless-worker-0', 'persistentvolumeclaim "no-such-claim" not found',
                  do='Make the claim that the message names, or correct its name')


class FromTheKubelet(Refusal):
    """The pod has its node, and does not start."""

    def test_an_image_that_cannot_be_pulled(self):
        job = self.submit(lone('unpulled', template({'image': 'registry.invalid/meshtrain-worker:1', 'securityContext': STRICT})))
        self.told('an image that no registry gives', job, 'ImagePull', 'unpulled-worker-0', 'ErrImagePull: failed to pull',
                  'registry.invalid/meshtrain-worker:1', do="Correct the image's name or tag")

    def test_a_program_of_another_machine(self):
        job = self.submit(lone('foreign', template({'image': 'localhost/foreign:1', 'securityContext': STRICT}), spec__runPolicy=ONCE))
        self.told('an image for another architecture', job, 'PodFailed', 'foreign-worker-0', 'exec format error', condition='Failed',
                  do='Use an image that is built for the architecture of the nodes')

    def test_an_image_of_roots(self):
        job = self.submit(lone('roots', template({'image': 'localhost/roots:1', 'securityContext': STRICT})))
        self.told('an image that would run as root', job, 'ContainerWaits', 'roots-worker-0', 'runAsNonRoot',
                  do='Use an image that runs as another user than root')

    def test_a_program_that_is_not_there(self):
        job = self.submit(lone('nothing', template({'command': ['/usr/bin/no-such-program']}), spec__runPolicy=ONCE))
        self.told('a command that the image lacks', job, 'BackoffLimitExceeded', 'nothing-worker-0', '128', 'StartError',
                  '/usr/bin/no-such-program', condition='Failed', do="Correct the container's command or its image")

    def test_a_variable_whose_config_map_is_missing(self):
        job = self.submit(lone('unset', template({'envFrom': [{'configMapRef': {'name': 'no-such-map'}}]})))
        self.told('a ConfigMap for variables that is missing', job, 'ContainerWaits', 'unset-worker-0', 'no-such-map',
                  'CreateContainerConfigError', do='Make what the message names, as a Secret or a ConfigMap.')

    def test_a_volume_whose_secret_is_missing(self):
        job = self.submit(lone('unmounted', template({'volumeMounts': [{'name': 'extra', 'mountPath': '/extra'}]},
                                                     volumes=[{'name': 'extra', 'secret': {'secretName': 'no-such-secret'}}])))
        self.told('a Secret to mount that is missing', job, 'SlowStart', 'unmounted-worker-0', '(Secret no-such-secret, ',
                  do="See the pod's events (`meshtrain events --pods`): a claim, a Secret or a volume that does not mount.")
        # Mended while it waits.
        secret('no-such-secret')
        self.addCleanup(kubectl, '-n', NAMESPACE, 'delete', 'secret', 'no-such-secret')
        job.until_succeeded()


class FromTheProcess(Refusal):
    """It starts, and ends."""

    def test_arguments_that_there_are_not(self):
        job = self.submit(lone('wordy', template({'args': ['--thread', 'many']})))
        self.told('arguments that the worker does not know', job, 'PodFailed', 'wordy-worker-0', 'exit code 64', '--thread',
                  condition='Failed', do="Correct the worker's arguments in the template")

    def test_data_that_is_not_there(self):
        job = self.submit(lone('blind', spec__program__data__train__idx__images='data/none.gz'))
        self.told('a file of data that is missing', job, 'PodFailed', 'blind-worker-0', 'exit code 66', 'data/none.gz',
                  condition='Failed', do='Make the file that the last line names available')

    def test_data_that_is_damaged(self):
        data = STATE / 'claims/mnist-data'
        whole = gzip.decompress((data / 'train-images-idx3-ubyte.gz').read_bytes())
        # Its head promises more images than follow.
        (data / 'damaged.gz').write_bytes(gzip.compress(whole[:-100], compresslevel=1))
        self.addCleanup((data / 'damaged.gz').unlink)
        job = self.submit(lone('damaged', spec__program__data__train__idx__images='data/damaged.gz'))
        self.told('a file of data that is damaged', job, 'PodFailed', 'damaged-worker-0', 'exit code 65', 'data/damaged.gz',
                  condition='Failed', do='Mend or replace the data that the last line names.')

    def test_a_loss_that_is_not_finite(self):
        job = self.submit(lone('diverges', spec__program__optimizer={'adam': {'learning_rate': 1e30}}))
        self.told('a loss that is not finite', job, 'PodFailed', 'diverges-worker-0', 'exit code 79', 'not finite',
                  condition='Failed', do='Lower the learning rate or clip the gradients')

    def test_a_plan_that_needs_more_memory_than_the_limit(self):
        model = ['flatten', {'dense': {'name': 'hidden', 'units': 30000}}, {'dense': {'name': 'logits', 'units': 10}}]
        job = self.submit(lone('greedy', template({'resources': {'limits': {'memory': '96Mi'}}}), spec__program__model=model))
        self.told('a plan that needs more memory than the limit', job, 'PodFailed', 'greedy-worker-0', 'exit code 78',
                  "100663296 bytes (the container's limit)", condition='Failed', do='Mend the manifest as the last line says.')

    def test_memory(self):
        """A plan that fits, in a container in which the process itself does not."""
        job = self.submit(lone('starved', template({'resources': {'limits': {'memory': '12Mi'}}}), spec__runPolicy=ONCE))
        self.told('a process that needs more memory than the limit', job, 'BackoffLimitExceeded', 'starved-worker-0', '137',
                  'OOMKilled', condition='Failed', do="Raise the container's memory limit, or make the batch smaller.")

    def test_a_disk_that_is_full(self):
        folder = claim('tiny-runs')
        for node in (1, 2):
            on_node(node, 'mount', '-t', 'tmpfs', '-o', 'size=256k,mode=0777', 'tmpfs', folder)
            self.addCleanup(on_node, node, 'umount', folder)
        job = self.submit(lone('full', spec__runPolicy=ONCE, spec__output={'claim': 'tiny-runs'}, spec__program__train={'epochs': 30}))
        self.told('an output claim that is full', job, 'BackoffLimitExceeded', 'full-worker-0', 'exit code 74',
                  'No space left on device', condition='Failed', do='Free room on the disk that the last line names')

    def test_a_port_that_is_taken(self):
        listens = {'name': 'listens', 'image': 'localhost/pause:1', 'command': ['/listen', str(SERVED)], 'restartPolicy': 'Always',
                   'securityContext': {**STRICT, 'runAsUser': 65532}}
        job = self.submit(small('crowded', workers=1, spec__runPolicy=ONCE, chief=template(initContainers=[listens])))
        self.told('a port that another container of the pod has', job, 'BackoffLimitExceeded', 'crowded-chief-0', 'exit code 138',
                  'Address already in use', condition='Failed', do='See the process or the port that the last line names. ' + FROM_ITS_CHECKPOINT)

    def test_a_token_of_another_job(self):
        secret('another-token', token='guessed')
        self.addCleanup(kubectl, '-n', NAMESPACE, 'delete', 'secret', 'another-token')
        job = self.submit(small('intruder', workers=1, spec__runPolicy=ONCE, worker=template(
            {'env': [{'name': 'MESHTRAIN_TOKEN_FILE', 'value': '/another/token'}],
             'volumeMounts': [{'name': 'another', 'mountPath': '/another'}]},
            volumes=[{'name': 'another', 'secret': {'secretName': 'another-token'}}])))
        self.told("a token that the job's other processes refuse", job, 'PodFailed', 'intruder-worker-0', 'exit code 78', 'token',
                  condition='Failed', do='Mend the manifest as the last line says.')


class FromOtherProcesses(Refusal):
    def test_a_process_that_answers_no_more(self):
        job = self.submit(small('silent', workers=1, epochs=1000, spec__runPolicy={**ONCE, 'peerReturnSeconds': 0}))
        job.until_step(60)
        job.send('worker-0', signal.SIGSTOP)
        self.addCleanup(lambda: job.pod('worker-0') and job.send('worker-0', signal.SIGCONT))
        self.told('a process that answers the others no more', job, 'BackoffLimitExceeded', 'silent-chief-0', 'exit code 138', 'worker-0',
                  condition='Failed', do='See the process or the port that the last line names. ' + FROM_ITS_CHECKPOINT)

    def test_an_evaluator_that_is_killed(self):
        job = self.submit(example('parameter-server', metadata={'name': 'judged'}, spec__runPolicy=ONCE, spec__replicaSpecs={
            role: {'replicas': 1, 'restartPolicy': 'ExitCode'} for role in ('chief', 'worker', 'ps', 'evaluator')},
            spec__program__train={'epochs': 1000}))
        job.until_step(60)
        job.kill('evaluator-0')
        self.told('an evaluator that is killed', job, 'BackoffLimitExceeded', 'judged-evaluator-0', 'exit code 137', condition='Failed',
                  do="See who killed it: its node's memory, the pod's events. " + FROM_ITS_CHECKPOINT)


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
        job = self.submit(small('deviceless', workers=1, worker=template({'resources': {'limits': {'example.com/device': '1'}}})))
        self.told('a device plugin that gives none of its devices', job, 'RestartBackoff', 'deviceless-worker-0', 'UnexpectedAdmissionError',
                  do="See the node's device plugin, which does not give what it offers.")
        self.assertIsNone(job.condition('Failed'))
        self.refuses.unlink()
        job.until_succeeded()
        self.assertEqual({one['counted'] for one in job.status()['recovery']['recent']}, {False}, job.told())
