#!/usr/bin/env python3
"""node_test.py ROOT BIN [TEST...]: on real nodes (scripts/kubernetes/node), with images that scripts/images makes of the programs
in BIN, the operator is installed by its chart and jobs train: tests of this folder, in the order of its modules. Afterwards
nothing is left of it all: no process, mount, cgroup, network namespace or file. With a TEST (as `training_test.Mlp`) only those,
after the installation. MT_NODE_LOGS names a folder that keeps the logs."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
MODULES = ['install_test', 'training_test', 'faults_test', 'refusals_test', 'tensorflow_test', 'uninstall_test']
SKIPPED = 77


def skip(why):
    print(f'node_test: skipped: {why}')
    sys.exit(SKIPPED)


def inside(names):
    """Beside the control plane."""
    sys.path.insert(0, str(HERE))
    loader = unittest.defaultTestLoader
    if names:
        # One installs, all else needs it.
        names = ['install_test'] + [name for name in names if not name.startswith('install_test')]
        suite = unittest.TestSuite(loader.loadTestsFromName(name) for name in names)
    else:
        suite = unittest.TestSuite(loader.loadTestsFromName(name) for name in MODULES if (HERE / f'{name}.py').exists())
    result = unittest.TextTestRunner(verbosity=2, failfast=bool(os.environ.get('MT_FAIL_FAST'))).run(suite)
    logs = os.environ.get('MT_NODE_LOGS')
    if logs:
        state = pathlib.Path(os.environ['NODE_DIR'])
        for log in (log for log in state.rglob('*.log') if log.is_file() and not log.is_symlink()):
            to = pathlib.Path(logs) / log.relative_to(state)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(log, to)
    sys.exit(0 if result.wasSuccessful() else 1)


def cgroups():
    return {str(path) for path in pathlib.Path('/sys/fs/cgroup').glob('**/meshtrain-node.*')}


def namespaces(kind):
    """Of all processes."""
    found = set()
    for process in pathlib.Path('/proc').glob('[0-9]*'):
        try:
            found.add(os.readlink(process / 'ns' / kind))
        except OSError:
            pass
    return found


def world():
    """What could be left behind on this machine. Others may come and go in it: what they add is no folder of ours."""
    return {
        'cgroups': cgroups(),
        'mounts': {line for line in pathlib.Path('/proc/mounts').read_text().splitlines() if 'meshtrain-node.' in line},
        'files': {str(path) for path in pathlib.Path('/var/tmp').glob('meshtrain-node.*')},
        'processes of a node': {line for line in subprocess.run(['ps', '-eo', 'args='], capture_output=True, text=True,
                                                                check=True).stdout.splitlines()
                                if '/meshtrain-node.' in line and not line.startswith('ps ')},
    }


def archives(root, programs, folder):
    """The images that the tests need, made in the folder."""
    pause = folder / 'pause'
    pause.mkdir()
    subprocess.run(['gcc', '-Os', '-static', '-s', '-o', pause / 'pause',
                    root / 'scripts/kubernetes/tools/pause/pause.c'], check=True)
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
    subprocess.run([root / 'scripts/images', '--with', 'nothing', '--build', programs, '--output', folder], check=True)
    print(f'images made in {time.monotonic() - begun:.0f} s', flush=True)
    ours = sorted(folder.glob('meshtrain-*-*.tar'))
    version = ours[0].stem.rsplit('-', 1)[1]
    return version, [folder / 'pause.tar', *ours, folder / 'foreign.tar', folder / 'roots.tar']


def tensorflow_image(root):
    """An archive, or '' where there is no Python with TensorFlow or none can be made of it."""
    python = os.environ.get('MT_TF_PYTHON')
    if not python:
        return ''
    made = subprocess.run([root / 'scripts/kubernetes/tensorflow-image', python], stdout=subprocess.PIPE, text=True, check=False)
    return made.stdout.strip() if made.returncode == 0 else ''


class Left(unittest.TestCase):
    """Nothing is left of a cluster, however it ended."""

    def start(self, *command):
        before = world()
        process = subprocess.Popen([ROOT / 'scripts/kubernetes/node', 'run', '--nodes', '1', '--image', ARCHIVES[0], '--',
                                    *command], stdout=subprocess.PIPE, text=True, start_new_session=True)
        return before, process

    def assert_nothing_left(self, before, network_before):
        end = time.monotonic() + 120
        while True:
            now = world()
            left = {kind: sorted(now[kind] - before[kind]) for kind in before}
            left['network namespaces'] = sorted(namespaces('net') - network_before) if ALONE else []
            if not any(left.values()):
                return
            if time.monotonic() > end:
                self.fail(f'left behind: { {kind: what for kind, what in left.items() if what} }')
            time.sleep(0.2)

    def test_its_status_is_the_commands(self):
        network = namespaces('net')
        before, process = self.start('bash', '-c', 'kubectl get nodes -o name; exit 3')
        said, _ = process.communicate(timeout=300)
        self.assertEqual((process.returncode, said), (3, 'node/node-1\n'))
        # At once, not some time later.
        self.assertEqual({kind: now - before[kind] for kind, now in world().items()}, {kind: set() for kind in before})
        self.assert_nothing_left(before, network)

    def test_interrupted_or_killed(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with self.subTest(number):
                network = namespaces('net')
                before, process = self.start('bash', '-c', 'echo here; sleep infinity')
                self.assertEqual(process.stdout.readline(), 'here\n')
                self.assertTrue(cgroups() - before['cgroups'])
                # As Ctrl-C does, to all of the session; a kill to the one process alone.
                (os.kill if number == signal.SIGKILL else os.killpg)(process.pid, number)
                process.wait(timeout=300)
                process.stdout.close()
                self.assert_nothing_left(before, network)


def main():
    global ROOT, ARCHIVES, ALONE
    if sys.argv[1] == '--inside':
        inside(sys.argv[2:])
    ROOT, programs, names = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve(), sys.argv[3:]
    ALONE = bool(os.environ.get('MT_NODE_ALONE'))  # nobody else makes network namespaces meanwhile
    begun = time.monotonic()
    if os.geteuid() != 0:
        skip('expected to be root, for namespaces and mounts')
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work)
        version, ARCHIVES = archives(ROOT, programs, folder)
        data = folder / 'data'
        subprocess.run([sys.executable, ROOT / 'scripts/make-data', '--first', '5000', '--out', data], check=True)
        before = world()
        command = [ROOT / 'scripts/kubernetes/node', 'run', *(word for a in ARCHIVES for word in ('--image', a))]
        tensorflow = tensorflow_image(ROOT)
        if tensorflow:
            command += ['--image-1', tensorflow]
        environment = {**os.environ, 'MT_ROOT': str(ROOT), 'MT_BIN': str(programs), 'MT_VERSION': version, 'MT_DATA': str(data),
                       'MT_TENSORFLOW_IMAGE': tensorflow}
        status = subprocess.run([*command, '--', sys.executable, HERE / 'node_test.py', '--inside', *names], check=False,
                                env=environment).returncode
        if status == 69:
            skip('scripts/kubernetes/node lacks what it says above')
        left = {kind: now - before[kind] for kind, now in world().items() if now - before[kind]}
        if left:
            print(f'left behind: {left}')
            status = status or 1
        if not names or 'left' in names:
            suite = unittest.defaultTestLoader.loadTestsFromTestCase(Left)
            status = status or (0 if unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful() else 1)
    print(f'node_test: {time.monotonic() - begun:.0f} s in all')
    sys.exit(status)


if __name__ == '__main__':
    main()
