// A real Prometheus scrapes, as the chart's monitors say, a real operator and a worker of
// `meshtrain run`, which is the leader of one of the operator's jobs: every query of the chart's
// dashboards gives data, with one row for each legend, and promtool finds nothing to say of either
// page. MT_WRITE_REFERENCE=1 keeps the counts of rows that docs/dashboards.md shows;
// scripts/dashboards then writes the page.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <set>
#include <thread>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "tests/integration/operator/monitors.h"
#include "tests/integration/operator/operator_fixture.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

// Queries that give nothing without a node ("board/panel"); all others must give data.
const std::set<std::string> kNeedANode = {};

std::string Contents(const std::string& path) {
  const auto text = ReadFile(path);
  return text.ok() ? *text : "";
}

// A program of this test's, which ends with it.
class Background {
 public:
  Background(std::vector<std::string> command, const std::string& log) : log_(log) {
    std::vector<char*> argv;
    for (std::string& word : command) argv.push_back(word.data());
    argv.push_back(nullptr);
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(out, 1);
      ::dup2(out, 2);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(out);
  }
  ~Background() { End(); }
  void End() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  std::string Log() const { return Contents(log_); }

 private:
  std::string log_;
  pid_t pid_ = -1;
};

int FreePort() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

std::string PrometheusFolder() {
  const CommandResult said = RunCommand({"bash", "-c", ". \"$1\" && printf %s \"$PROMETHEUS_BIN\"",
                                         "_", MT_SOURCE_DIR "/scripts/kubernetes/env.sh"});
  return said.exit_code == 0 ? said.out : "";
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// One query of a dashboard.
struct Query {
  std::string board, panel, text, legend;
  size_t place = 0;  // among the panel's
  size_t rows = 0;
  std::string where() const { return board + "/" + panel; }
};

class DashboardsTest : public OperatorTest {
 protected:
  void SetUp() override {
    OperatorTest::SetUp();
    if (IsSkipped()) return;
    programs_ = PrometheusFolder();
    if (!std::filesystem::exists(programs_ + "/prometheus")) {
      GTEST_SKIP() << "Prometheus was not unpacked: scripts/install-prometheus";
    }
  }

  // The manifest of a job of two processes that trains for as long as the test lasts.
  std::string Manifest() const {
    const std::string data = std::string(MT_TESTDATA) + "/mlp/digits5120-";
    return "apiVersion: meshtrain.dev/v1\nkind: TrainingJob\nmetadata: {name: mnist}\nspec:\n"
           "  replicaSpecs: {worker: {replicas: 2}}\n  checkpoint: {everySteps: 400}\n  program:\n"
           "    mesh: {batch: 2}\n    data:\n      train: {idx: {images: " +
           data + "images-idx3-ubyte.gz, labels: " + data +
           "labels-idx1-ubyte.gz}, take: 4096}\n      map: [{scale: 0.00392156862745098}]\n      "
           "batch: 64\n    model: [flatten, dense: "
           "{units: 10}]\n    loss: {sparse_categorical_crossentropy: {from_logits: true}}\n"
           "    optimizer: {adam: {learning_rate: 0.0001}}\n    metrics: [accuracy]\n"
           "    train: {epochs: 1000000}\n";
  }

  void StartRun() {
    worker_port_ = FreePort();
    const std::string file = folder_.path() + "/job.yaml";
    ASSERT_TRUE(WriteFileAtomically(file, Manifest()).ok());
    run_ = std::make_unique<Background>(
        std::vector<std::string>{MT_MESHTRAIN, "run", "-f", file, "--output",
                                 folder_.path() + "/out", "--threads", "1", "--metrics-address",
                                 "127.0.0.1:" + std::to_string(worker_port_)},
        folder_.path() + "/run.log");
    ASSERT_TRUE(Eventually([&] { return run_->Log().find("live page") != std::string::npos; }))
        << run_->Log();
  }

  // As the chart's ServiceMonitor and PodMonitor have it scraped: the operator at its Service, and
  // the run at the pod of mnist whose process it is. Beside these, what they leave alone.
  void StartPrometheus(int operator_port) {
    const CommandResult chart = api().Helm(
        {"template", "meshtrain", std::string(MT_SOURCE_DIR) + "/helm/meshtrain", "--namespace",
         "meshtrain-system", "--kube-version", "v1.34.0", "--set",
         "crds.enabled=false,metrics.podMonitor.enabled=true,metrics.serviceMonitor.enabled=true"});
    ASSERT_EQ(chart.exit_code, 0) << chart.out;
    json scraped = ScrapeConfigs(chart.out);
    ASSERT_EQ(scraped.size(), 2u) << chart.out;
    const auto target = [](int port, json labels) {
      return json{{"targets", {"127.0.0.1:" + std::to_string(port)}},
                  {"labels", std::move(labels)}};
    };
    const json pod = Get(kube::Pods(), "mnist-worker-0"), service = Rendered(chart.out, "Service");
    json other = pod;
    other["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "somebody";
    for (json& one : scraped) {
      one["static_configs"] = {target(operator_port, ServicePort(service, "metrics")),
                               target(worker_port_, PodPort(pod, "meshtrain-http")),
                               target(worker_port_, PodPort(pod, "meshtrain-rpc")),
                               target(worker_port_, PodPort(other, "meshtrain-http"))};
    }
    const json config = {{"global", {{"scrape_interval", "500ms"}, {"scrape_timeout", "500ms"}}},
                         {"scrape_configs", scraped}};
    const std::string file = folder_.path() + "/prometheus.yaml";
    ASSERT_TRUE(WriteFileAtomically(file, config.dump()).ok());  // JSON is YAML
    const int port = FreePort();
    prometheus_ = std::make_unique<Background>(
        std::vector<std::string>{programs_ + "/prometheus", "--config.file=" + file,
                                 "--storage.tsdb.path=" + folder_.path() + "/tsdb",
                                 "--web.listen-address=127.0.0.1:" + std::to_string(port),
                                 "--log.level=warn"},
        folder_.path() + "/prometheus.log");
    client_ = std::make_unique<httplib::Client>("127.0.0.1", port);
    ASSERT_TRUE(Eventually([&] {
      const auto answer = client_->Get("/-/ready");
      return answer && answer->status == 200;
    })) << prometheus_->Log();
    ASSERT_TRUE(Eventually([&] { return Ask("up == 1").size() == 2; })) << prometheus_->Log();
    EXPECT_EQ(Ask("up").size(), 2u) << "what else is scraped";
    // Two processes of one job: a part of each step is their collectives.
    EXPECT_TRUE(Eventually([&] {
      return !Ask("0 < meshtrain_collective_seconds_total < meshtrain_step_seconds_sum").empty();
    }));
    // No pod's name is among the labels.
    json labels = Ask("meshtrain_steps_total")[0]["metric"];
    EXPECT_EQ(labels.value("namespace", ""), ns_);
    EXPECT_EQ(labels.value("training_job", ""), "mnist");
    for (const char* open : {"pod", "container", "endpoint"}) EXPECT_FALSE(labels.contains(open));
    labels = Ask("meshtrain_operator_reconcile_total")[0]["metric"];
    EXPECT_EQ(labels.value("namespace", ""), "meshtrain-system");
  }

  // The rows of an instant query whose value is a number.
  std::vector<json> Ask(const std::string& query) {
    const auto answer =
        client_->Get("/api/v1/query", httplib::Params{{"query", query}}, httplib::Headers{});
    std::vector<json> rows;
    if (!answer) return rows;
    const json said = json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
    if (!said.is_object() || said.value("status", "") != "success") {
      ADD_FAILURE() << query << ": " << answer->body;
      return rows;
    }
    for (const json& row : said["data"]["result"]) {
      if (std::isfinite(std::atof(row["value"][1].get<std::string>().c_str()))) rows.push_back(row);
    }
    return rows;
  }

  // A dashboard's query as Grafana would send it for `job`.
  std::string Sent(const std::string& query, const std::string& job) const {
    return Replaced(Replaced(Replaced(query, "$__rate_interval", "4s"), "$namespace", ns_), "$job",
                    job);
  }

  static std::vector<Query> Queries() {
    std::vector<Query> out;
    for (const char* board : {"jobs", "run", "workers", "operator"}) {
      const json dashboard = json::parse(Contents(
          std::string(MT_SOURCE_DIR) + "/helm/meshtrain/files/dashboards/" + board + ".json"));
      for (const json& panel : dashboard["panels"]) {
        size_t place = 0;
        for (const json& target : panel["targets"]) {
          out.push_back({board, panel["title"], target["expr"], target["legendFormat"], place++});
        }
      }
      for (const json& mark : dashboard["annotations"]["list"]) {
        out.push_back({board, "annotation " + mark["name"].get<std::string>(), mark["expr"], ""});
      }
      for (const json& variable : dashboard["templating"]["list"]) {
        if (variable["type"] != "query") continue;
        // label_values(SERIES, LABEL)
        static const std::regex form("label_values\\((.*), (\\w+)\\)");
        std::smatch parts;
        const std::string definition = variable["definition"];
        EXPECT_TRUE(std::regex_match(definition, parts, form)) << definition;
        const std::string query = "group by (" + parts[2].str() + ") (" + parts[1].str() + ") > 0";
        out.push_back({board, "variable " + variable["name"].get<std::string>(), query,
                       "{{" + parts[2].str() + "}}"});
      }
    }
    return out;
  }

  // Looks once what a query gives by now.
  void Look(Query* query) {
    for (const char* job : {"mnist", "slow"}) {
      const std::vector<json> rows = Ask(Sent(query->text, job));
      if (rows.empty()) continue;  // as where nothing happens any more: what was seen stays
      std::set<std::string> legends;
      for (const json& row : rows) {
        std::string legend = query->legend;
        for (const auto& [label, value] : row["metric"].items()) {
          legend = Replaced(legend, "{{" + label + "}}", value.get<std::string>());
        }
        EXPECT_THAT(legend, Not(HasSubstr("{{"))) << query->where();
        legends.insert(legend);
      }
      const bool panel = !query->panel.starts_with("annotation");
      if (panel) {
        EXPECT_EQ(legends.size(), rows.size()) << query->where() << ": " << query->legend;
      }
      query->rows = rows.size();
      return;
    }
  }

  void CheckPage(const std::string& name, int port) {
    httplib::Client client("127.0.0.1", port);
    const auto page = client.Get("/metrics");
    ASSERT_TRUE(page) << name;
    const CommandResult checked =
        RunCommand({programs_ + "/promtool", "check", "metrics"}, {}, page->body);
    EXPECT_EQ(checked.exit_code, 0) << name << ": " << checked.out;
    EXPECT_EQ(checked.out, "") << name;
    if (name != "worker") return;
    int series = 0;
    for (const std::string& line : Split(page->body, '\n')) {
      series += !line.empty() && line[0] != '#' ? 1 : 0;
    }
    EXPECT_LE(series, 60) << page->body;
    EXPECT_EQ(client.Get("/", httplib::Headers{{"Host", "rebound.example"}})->status, 421);
  }

  std::string programs_;
  testing_folder::TempFolder folder_;
  int worker_port_ = 0;
  std::unique_ptr<Background> run_, prometheus_;
  std::unique_ptr<httplib::Client> client_;
};

// The last of three takes nine times as long as the others; each answer is ten steps further.
std::string SlowProgress(int step) {
  return json{{"step", step},
              {"totalSteps", 100000},
              {"epoch", 1.5},
              {"loss", 0.25},
              {"accuracy", 0.5},
              {"examplesPerSecond", 100},
              {"rankStepSeconds", {0.1, 0.1, 0.9}},
              {"checkpoint", {{"step", step}, {"path", "/c"}}}}
      .dump();
}

TEST_F(DashboardsTest, EveryQueryGivesDataAndTheTableSaysHowMuch) {
  httplib::Server chief;
  std::atomic<int> step = 0;
  chief.Get("/progress", [&](const httplib::Request&, httplib::Response& response) {
    response.set_content(SlowProgress(step += 10), "application/json");
  });
  const int slow_port = chief.bind_to_any_port("127.0.0.1");
  ASSERT_GT(slow_port, 0);
  std::jthread serving([&] { chief.listen_after_bind(); });
  const std::shared_ptr<void> stops(nullptr, [&](void*) { chief.stop(); });

  OperatorProcess& process = StartOperator();
  StartRun();
  if (HasFatalFailure()) return;

  // Two jobs whose leaders are asked how far they are, one of them the run's own process.
  const auto ask_at = [](int port) {
    const json container = {{"name", "trainer"},
                            {"image", "i"},
                            {"ports", {{{"name", "meshtrain-http"}, {"containerPort", port}}}}};
    return json{
        {"replicaSpecs",
         {{"worker", {{"template", {{"spec", {{"containers", json::array({container})}}}}}}}}}};
  };
  const auto run_on = [&](const std::string& job, int workers, int port) {
    json spec = ask_at(port);
    spec["elastic"] = {{"minReplicas", 1}, {"maxReplicas", 8}};
    ApplyJob(job, 0, workers, spec);
    ASSERT_TRUE(WaitForPods(job, workers));
    const auto patched = api().client().Patch(
        kube::Pods(), ns_, job + "-worker-0", "status", kube::PatchType::kMerge,
        R"({"status":{"podIP":"127.0.0.1","podIPs":[{"ip":"127.0.0.1"}]}})", {});
    ASSERT_TRUE(patched.ok()) << patched.status().ToString();
    for (int i = 0; i < workers; ++i) SetRunning(job + "-worker-" + std::to_string(i));
  };
  run_on("mnist", 2, worker_port_);
  run_on("slow", 3, slow_port);
  if (HasFatalFailure()) return;
  StartPrometheus(process.metrics_port());
  if (HasFatalFailure()) return;
  ASSERT_TRUE(Eventually([&] { return !Ask("meshtrain_job_restarts{job=\"mnist\"}").empty(); }))
      << process.Log();

  // What one looks for on a dashboard.
  ApplyJob("fails", 0, 1);
  ApplyJob("waits", 0, 1);
  ApplyJob("new", 0, 1);
  for (const char* job : {"fails", "waits", "new"}) ASSERT_TRUE(WaitForPods(job, 1));
  SetRunning("fails-worker-0");
  SetEnded("fails-worker-0", 3);
  const json unschedulable = {{"type", "PodScheduled"},
                              {"status", "False"},
                              {"reason", "Unschedulable"},
                              {"message", "0/3 nodes are available."}};
  ASSERT_TRUE(api()
                  .client()
                  .Patch(kube::Pods(), ns_, "waits-worker-0", "status", kube::PatchType::kMerge,
                         json{{"status", {{"conditions", {unschedulable}}}}}.dump(), {})
                  .ok());
  const auto uid = [&] {
    const json found = Get(kube::Pods(), "mnist-worker-1");
    return found.is_object() ? found["metadata"]["uid"].get<std::string>() : std::string();
  };
  const std::string first = uid();
  SetEnded("mnist-worker-1", 138);
  ASSERT_TRUE(Eventually([&] {
    const std::string now = uid();
    return !now.empty() && now != first;
  })) << process.Log();
  SetRunning("mnist-worker-1");

  std::vector<Query> queries = Queries();
  EXPECT_GT(queries.size(), 30u);
  CheckPage("operator", process.metrics_port());
  CheckPage("worker", worker_port_);
  std::set<std::string> missing;
  const auto look = [&] {
    missing.clear();
    bool asks_worker = false;
    for (Query& query : queries) {
      Look(&query);
      if (query.rows > 0) continue;
      missing.insert(query.where());
      asks_worker = asks_worker || query.text.find("training_job") != std::string::npos;
    }
    // It computes all the time.
    if (!asks_worker && run_) run_->End();
    return missing == kNeedANode;
  };
  // Once all else is seen, since all processes of the job restart then.
  const std::set<std::string> rescales = {"run/annotation rescales"};
  EXPECT_TRUE(Eventually([&] { return look() || missing == rescales; }, std::chrono::seconds(60)));
  Kubectl({"scale", "tj", "slow", "--replicas=4"});
  EXPECT_TRUE(Eventually(look));
  EXPECT_EQ(missing, kNeedANode) << process.Log() << prometheus_->Log() << run_->Log();

  // The table of docs/dashboards.md, when all has settled.
  const auto table = [&] {
    json rows = json::object();
    for (const Query& query : queries) {
      const bool shown =
          !query.panel.starts_with("annotation") && !query.panel.starts_with("variable");
      if (shown) rows[query.board][query.panel].push_back(query.rows);
    }
    // Which answers the API server gave is a matter of the moment: conflicts are among them.
    json& requests = rows["operator"]["Requests"][0];
    if (requests > 3) requests = "several";
    return rows;
  };
  const std::string file = std::string(MT_TESTDATA) + "/dashboards/rows.json";
  if (std::getenv("MT_WRITE_REFERENCE") != nullptr) {
    json before;
    ASSERT_TRUE(Eventually([&] {
      SystemClock().SleepFor(std::chrono::seconds(5), {});
      look();
      return std::exchange(before, table()) == before;
    }));
    EXPECT_TRUE(WriteFileAtomically(file, before.dump(1) + "\n").ok());
  }
  const json kept = json::parse(Contents(file));
  EXPECT_TRUE(Eventually([&] {
    look();
    return table() == kept;
  })) << "write the table again: "
      << json::diff(kept, table()).dump();
}

}  // namespace
}  // namespace meshtrain::testing
