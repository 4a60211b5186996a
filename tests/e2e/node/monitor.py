"""A Prometheus beside the cluster. Debian's cannot ask Kubernetes which pods there are; a server of this test's tells it: those
with the labels and the ports that the chart's ServiceMonitor and PodMonitor name."""
import http.server
import json
import pathlib
import subprocess
import threading
import urllib.parse
import urllib.request

from cluster import ROOT, STATE, listed, run

CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
- job_name: pods
  honor_labels: true
  http_sd_configs: [{{url: 'http://127.0.0.1:{port}/', refresh_interval: 1s}}]
"""


def program():
    return pathlib.Path(run('bash', '-c', '. "$1" && printf %s "$PROMETHEUS_BIN"', '_',
                            ROOT / 'scripts/kubernetes/env.sh')) / 'prometheus'


def targets():
    found = []
    for pod in listed('-A', 'pods'):
        labels, address = pod['metadata'].get('labels', {}), pod['status'].get('podIP')
        wanted = ('metrics' if labels.get('app.kubernetes.io/name') == 'meshtrain' else
                  'meshtrain-http' if labels.get('app.kubernetes.io/managed-by') == 'meshtrain-operator' else None)
        for container in pod['spec']['containers']:
            for port in container.get('ports', []):
                if address and wanted and port.get('name') == wanted:
                    found.append({'targets': [f'{address}:{port["containerPort"]}'],
                                  'labels': {'namespace': pod['metadata']['namespace']}})
    return found


class Targets(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps(targets()).encode()
        self.send_response(200)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Prometheus:
    """With, it runs."""

    def __enter__(self):
        self.server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Targets)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        config = STATE / 'prometheus.yml'
        config.write_text(CONFIG.format(port=self.server.server_port))
        self.log = (STATE / 'prometheus.log').open('w')
        self.process = subprocess.Popen(
            [program(), f'--config.file={config}', f'--storage.tsdb.path={STATE}/prometheus',
             '--web.listen-address=127.0.0.1:9090'], stdout=self.log, stderr=self.log)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()
        self.server.shutdown()
        self.server.server_close()

    def told(self):
        return (STATE / 'prometheus.log').read_text()[-2000:] + json.dumps(targets())

    @staticmethod
    def ask(query):
        """[(labels, value)]; nothing while it has not begun to listen."""
        url = 'http://127.0.0.1:9090/api/v1/query?' + urllib.parse.urlencode({'query': query})
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as answer:
                return [(row['metric'], float(row['value'][1])) for row in json.load(answer)['data']['result']]
        except OSError:
            return []
