#!/usr/bin/env python3
"""node_test.py ROOT BIN [TEST...]: on real nodes (scripts/kubernetes/node), with images that scripts/images makes of the programs
in BIN, the operator is installed by its chart and jobs train: tests of this folder, in the order of its modules. Afterwards
nothing is left of it all: no process, mount, cgroup, network namespace or file. With a TEST (as `training_test.Mlp`) only those,
after the installation; `left` is what looks at what is left. MT_NODE_LOGS names a folder that keeps the logs. page_test holds
docs/reference/node.md against what the tests were told; with MT_WRITE_REFERENCE=1 it writes that page anew."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from figures import note

HERE = pathlib.Path(__file__).resolve().parent
MODULES = ['install_test', 'training_test', 'faults_test', 'refusals_test', 'network_test', 'queues_test',
           'tensorflow_test', 'page_test', 'uninstall_test']
SKIPPED = 77
# How all that is ours begins: others may have clusters on this machine too.
NAME = f'meshtrain-node-{os.getpid()}'


def skip(why):
    print(f'node_test: skipped: {why}')
    sys.exit(SKIPPED)


class Result(unittest.TextTestResult):
    """Says at once what failed: the others take their time."""

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.stream.writeln(self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self.stream.writeln(self.errors[-1][1])


def inside(names):
    """Beside the control plane."""
    sys.path.insert(0, str(HERE))
    loader = unittest.defaultTestLoader
    if names:
        # One installs, all else needs it.
        names = ['install_test'] + [name for name in names if not name.startswith('install_test')]
        suite = unittest.TestSuite(loader.loadTestsFromName(name) for name in names)
    else:
        os.environ['MT_NODE_WHOLE'] = '1'
        suite = unittest.TestSuite(loader.loadTestsFromName(name) for name in MODULES)
    result = unittest.TextTestRunner(verbosity=2, resultclass=Result).run(suite)
    logs = os.environ.get('MT_NODE_LOGS')
    if logs:
        state = pathlib.Path(os.environ['NODE_DIR'])
        for log in (log for log in state.rglob('*.log') if log.is_file() and not log.is_symlink()):
            to = pathlib.Path(logs) / log.relative_to(state)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(log, to)
    sys.exit(0 if result.wasSuccessful() else 1)


def cgroups():
    return {str(path) for path in pathlib.Path('/sys/fs/cgroup').glob(f'**/{NAME}.*')}


def left():
    """What is on this machine of a cluster of ours."""
    found = {
        'cgroups': cgroups(),
        'mounts': {line for line in pathlib.Path('/proc/mounts').read_text().splitlines() if NAME in line},
        'files': {str(path) for path in pathlib.Path(tempfile.gettempdir()).glob(f'{NAME}.*')},
        'processes': {line for line in subprocess.run(['ps', '-eo', 'pid=,args='], capture_output=True, text=True,
                                                      check=True).stdout.splitlines() if f'{NAME}.' in line},
    }
    return {kind: sorted(what) for kind, what in found.items() if what}


def processes_of(world):
    """Those of a PID namespace, which a network namespace cannot outlive here: nobody else knows of it."""
    found = set()
    for process in pathlib.Path('/proc').glob('[0-9]*'):
        try:
            if os.readlink(process / 'ns/pid') == world:
                found.add(process.name)
        except OSError:
            pass
    return found


def archives(root, programs, folder):
    """The images that the tests need, made in the folder."""
    pause = folder / 'pause'
    pause.mkdir()
    for program in ('pause', 'listen'):
        subprocess.run(['gcc', '-Os', '-static', '-s', '-o', pause / program,
                        root / f'scripts/kubernetes/tools/pause/{program}.c'], check=True)
    image = root / 'scripts/kubernetes/image'
    subprocess.run([image, 'localhost/pause:1', pause, folder / 'pause.tar', '/pause'], check=True)
    # One that this machine cannot execute (e_machine of another architecture), and one that root would run.
    foreign = folder / 'foreign'
    (foreign / 'usr/bin').mkdir(parents=True)
    program = bytearray((pause / 'pause').read_bytes())
    program[18:20] = (0x5a5a).to_bytes(2, 'little')
    (foreign / 'usr/bin/meshtrain-worker').write_bytes(program)
    (foreign / 'usr/bin/meshtrain-worker').chmod(0o755)
    subprocess.run([image, 'localhost/foreign:1', foreign, folder / 'foreign.tar', '--user', '65532',
                    '/usr/bin/meshtrain-worker'], check=True)
    subprocess.run([image, 'localhost/roots:1', pause, folder / 'roots.tar', '/pause'], check=True)
    begun = time.monotonic()
    said = subprocess.run([root / 'scripts/images', '--with', 'nothing', '--build', programs, '--output', folder], check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    # NAME:TAG  FILE  SIZE
    sizes = ', '.join(' '.join(line.split('  ')[::2]) for line in said.splitlines())
    note(f'images made in {time.monotonic() - begun:.0f} s: {sizes}')
    ours = sorted(folder.glob('meshtrain-*-*.tar'))
    version = ours[0].stem.rsplit('-', 1)[1]
    # The worker's with a program of one's own, as deploy/examples/custom-loop.yaml names it.
    subprocess.run([root / 'scripts/images', '--build', programs, '--output', folder, '--tag', 'custom-loop', '--program',
                    programs / 'custom_loop', 'worker'], check=True, stdout=subprocess.DEVNULL)
    own = folder / 'meshtrain-worker-custom-loop.tar'
    return version, [folder / 'pause.tar', *ours, own, folder / 'foreign.tar', folder / 'roots.tar']


def tensorflow_image(root):
    """An archive, or '' where there is no Python with TensorFlow."""
    python = os.environ.get('MT_TF_PYTHON')
    if not python:
        return ''
    made = subprocess.run([root / 'scripts/kubernetes/tensorflow-image', python], stdout=subprocess.PIPE, text=True, check=True)
    return made.stdout.strip()


class Left(unittest.TestCase):
    """Nothing is left of a cluster, however it ended."""

    def start(self, *command):
        return subprocess.Popen([ROOT / 'scripts/kubernetes/node', 'run', '--nodes', '1', '--image', ARCHIVES[0], '--', *command],
                                stdout=subprocess.PIPE, text=True, start_new_session=True,
                                # Where we run in somebody's background, an interrupt is ignored.
                                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))

    def test_its_status_is_the_commands(self):
        process = self.start('bash', '-c', 'kubectl get nodes -o name; exit 3')
        said, _ = process.communicate(timeout=300)
        self.assertEqual((process.returncode, said), (3, 'node/node-1\n'))
        self.assertEqual(left(), {})  # at once, not some time later

    def test_interrupted_or_killed(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with self.subTest(number):
                process = self.start('bash', '-c', 'readlink /proc/self/ns/pid; sleep infinity')
                world = process.stdout.readline().strip()
                self.assertTrue(cgroups())
                self.assertTrue(processes_of(world))
                # As Ctrl-C does, to all of the session; a kill to the one process alone.
                (os.kill if number == signal.SIGKILL else os.killpg)(process.pid, number)
                process.wait(timeout=300)
                process.stdout.close()
                end = time.monotonic() + 120
                while (left() or processes_of(world)) and time.monotonic() < end:
                    time.sleep(0.2)
                self.assertEqual((left(), processes_of(world)), ({}, set()))


def main():
    global ROOT, ARCHIVES
    if sys.argv[1] == '--inside':
        inside(sys.argv[2:])
    ROOT, programs, names = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve(), sys.argv[3:]
    os.environ['NODE_NAME'] = NAME
    # Not in memory: it takes gigabytes of images.
    os.environ['TMPDIR'] = tempfile.tempdir = os.environ.get('TMPDIR', '/var/tmp')
    begun = time.monotonic()
    if os.geteuid() != 0:
        skip('expected to be root, for namespaces and mounts')
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work)
        version, ARCHIVES = archives(ROOT, programs, folder)
        data = folder / 'data'
        subprocess.run([sys.executable, ROOT / 'scripts/make-data', '--first', '5000', '--out', data], check=True)
        command = [ROOT / 'scripts/kubernetes/node', 'run', *(word for a in ARCHIVES for word in ('--image', a))]
        tensorflow = tensorflow_image(ROOT)
        if tensorflow:
            command += ['--image-1', tensorflow]
        environment = {**os.environ, 'MT_ROOT': str(ROOT), 'MT_BIN': str(programs), 'MT_VERSION': version, 'MT_DATA': str(data),
                       'MT_TENSORFLOW_IMAGE': tensorflow}
        status = 0 if names == ['left'] else subprocess.run([*command, '--', sys.executable, HERE / 'node_test.py', '--inside', *names], check=False,
                                env=environment).returncode
        if status == 69:
            skip('scripts/kubernetes/node lacks what it says above')
        if left():
            print(f'left behind: {left()}')
            status = status or 1
        if not names or names == ['left']:
            suite = unittest.defaultTestLoader.loadTestsFromTestCase(Left)
            status = status or (0 if unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful() else 1)
    note(f'node_test: {time.monotonic() - begun:.0f} s in all')
    sys.exit(status)


if __name__ == '__main__':
    main()
