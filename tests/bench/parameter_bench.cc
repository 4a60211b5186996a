// Steps, pulls and pushes a second of the parameter-server strategy, processes over loopback: the
// coordinator here, workers and servers as children of this program.
//
//   parameter_bench                      the table of README.md
//   parameter_bench JOB [name=value ...] one line; JOB: guide, mlp
//     workers=2 servers=1 window=1 log=FOLDER|none batch=128 seconds=3 steps=0
//
// The job `guide` is that of TensorFlow's ParameterServerStrategy in peers/strategies.py: Dense(1)
// on ([1.], [1.]) in batches of 5, `w` and `b` changed by the step itself and a count beside them.
// steps=199 after a first one times it as that script does. `mlp` is 784-700-500-10 under Adam, its
// kernels cut in two.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/nn/layers.h"
#include "runtime/nn/model.h"
#include "runtime/parameter/chief/coordinator.h"
#include "runtime/parameter/server/server.h"
#include "runtime/parameter/worker/worker_server.h"
#include "runtime/program/ops.h"
#include "runtime/train/optimizer.h"

extern char** environ;

namespace meshtrain::parameter {
namespace {

using mesh::DType;
using mesh::Tensor;
using mesh::TensorType;
using program::Builder;
using program::Value;

const Identity kIdentity = {.job = "bench/parameter", .security = {.token = "bench"}};

template <typename T>
T Must(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "parameter_bench: %s\n", result.status().ToString().c_str());
  std::exit(1);
}
void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "parameter_bench: %s\n", status.ToString().c_str());
  std::exit(1);
}

// --- the children

int LiveUntilTheEndOfInput(int port) {
  std::printf("%d\n", port);
  std::fflush(stdout);
  char c = 0;
  while (::read(0, &c, 1) > 0) {
  }
  return 0;
}

class Child {
 public:
  explicit Child(std::vector<std::string> arguments) {
    int in[2], out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) std::abort();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    arguments.insert(arguments.begin(), "/proc/self/exe");
    std::vector<char*> argv;
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    if (::posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) std::abort();
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    input_ = in[1];
    std::string line;
    char c = 0;
    while (::read(out[0], &c, 1) == 1 && c != '\n') line += c;
    ::close(out[0]);
    address_ = "127.0.0.1:" + line;
  }
  ~Child() {
    ::close(input_);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  const std::string& address() const { return address_; }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  std::string address_;
};

// --- the jobs

struct Setup {
  std::string job = "guide";
  std::map<std::string, std::string> values = {{"workers", "2"}, {"servers", "1"}, {"window", "1"},
                                               {"log", "none"},  {"batch", "128"}, {"seconds", "3"},
                                               {"steps", "0"}};
  int number(const std::string& name) const { return std::atoi(values.at(name).c_str()); }
};

struct Running {
  std::unique_ptr<Coordinator> coordinator;
  Function step;
  PerWorker data;
};

data::PipelineSpec Batches(const Tensor& x, const Tensor& y, int64_t size) {
  data::PipelineSpec spec;
  spec.source.from = data::MemoryArrays{{x, y}};
  spec.stages.emplace_back(data::BatchStage{size});
  return spec;
}

void BeginGuide(Running& r) {
  const Parameter w("w", TensorType{DType::kF32, {1, 1}},
                    nn::Initializer::Constant(-0.3822425901889801));
  const Parameter b("b", TensorType{DType::kF32, {1}}, nn::Initializer::Zeros());
  const Parameter it("it", TensorType{DType::kI64, {}}, nn::Initializer::Zeros(),
                     {.trainable = false});
  const std::vector<Parameter> variables = {w, b, it};
  Must(r.coordinator->CreateVariables(variables));
  Builder builder("step");
  Builder::Scope scope(builder);
  const Value x = builder.Input("x", {DType::kF32, {5, 1}});
  const Value y = builder.Input("y", {DType::kF32, {5, 1}});
  const Value loss =
      program::ReduceMean(program::SigmoidCrossEntropy(program::MatMul(x, w) + b, y)) +
      program::ReduceSum(program::Square(w)) * 1e-4;
  const program::Variable wrt[] = {w, b};
  const std::vector<Value> gradients = builder.Gradient(loss, wrt);
  program::AssignSub(w, gradients[0] * 0.01);
  program::AssignSub(b, gradients[1] * 0.01);
  program::AssignAdd(it, 1);
  builder.Output("loss", loss);
  r.step = Must(r.coordinator->DefineFunction(Must(builder.Build())));
  const Tensor ones = Tensor::Of<float>({1000, 1}, std::vector<float>(1000, 1.0f));
  r.data = Must(r.coordinator->CreatePerWorkerDataset("ones", Batches(ones, ones, 5)));
}

void BeginMlp(Running& r, int batch) {
  train::Recipe recipe;
  recipe.model = std::make_shared<nn::Sequential>(
      nn::Flatten(), nn::Dense(700, {.activation = nn::ActivationKind::kRelu}),
      nn::Dense(500, {.activation = nn::ActivationKind::kRelu}), nn::Dense(10));
  recipe.heads[0].loss = train::losses::SparseCategoricalCrossentropy({.from_logits = true});
  recipe.optimizer = train::Adam();
  const BatchTypes types[] = {{{DType::kF32, {batch, 28, 28}}, {DType::kI32, {batch}}}};
  r.step = Must(r.coordinator->DefineTraining(recipe, types)).step;
  Tensor x(TensorType{DType::kF32, {10 * batch, 28, 28}}), y(TensorType{DType::kI32, {10 * batch}});
  uint32_t state = 1;
  for (float& v : x.mutable_values<float>()) {
    v = static_cast<float>((state = state * 1664525 + 1013904223) >> 8) / 16777216;
  }
  for (int32_t& v : y.mutable_values<int32_t>()) {
    v = static_cast<int32_t>((state = state * 1664525 + 1013904223) >> 8) % 10;
  }
  r.data = Must(r.coordinator->CreatePerWorkerDataset("noise", Batches(x, y, batch)));
}

void RunSetup(const Setup& setup) {
  const int workers = setup.number("workers"), servers = setup.number("servers");
  std::string folder;
  if (setup.values.at("log") != "none") {
    folder = setup.values.at("log") + "/parameter_bench." + std::to_string(::getpid());
  }
  CoordinatorOptions options;
  options.identity = kIdentity;
  options.steps_in_flight = setup.number("window");
  options.max_queued = 1000;
  if (setup.job == "mlp") options.partitioner = MinSize{256 << 10, 2};
  std::vector<std::unique_ptr<Child>> children;
  for (int s = 0; s < servers; ++s) {
    const std::string own = folder.empty() ? "none" : folder + "/ps-" + std::to_string(s);
    children.push_back(std::make_unique<Child>(std::vector<std::string>{"ps", own}));
    options.cluster.hosts[cluster::Role::kPs][s] = children.back()->address();
  }
  for (int w = 0; w < workers; ++w) {
    children.push_back(std::make_unique<Child>(std::vector<std::string>{"worker"}));
    options.cluster.hosts[cluster::Role::kWorker][w] = children.back()->address();
  }
  Running r{Must(Coordinator::Create(options)), {}, {}};
  if (setup.job == "mlp") {
    BeginMlp(r, setup.number("batch"));
  } else {
    BeginGuide(r);
  }
  Coordinator& c = *r.coordinator;
  const auto now = [] { return SystemClock().Monotonic(); };
  // The first steps, until every worker takes part.
  for (int i = 0; i < 600 && c.stats().workers_ready < workers; ++i) {
    SystemClock().SleepFor(std::chrono::milliseconds(20), {});
  }
  for (int i = 0; i < 2 * workers * options.steps_in_flight; ++i) {
    Must(c.Schedule(r.step, {r.data}).status());
  }
  Must(c.Join());

  const DispatcherStats before = c.stats();
  const Duration begin = now();
  const int steps = setup.number("steps");
  if (steps > 0) {
    for (int i = 0; i < steps; ++i) Must(c.Schedule(r.step, {r.data}).status());
  } else {
    while (now() - begin < std::chrono::seconds(setup.number("seconds"))) {
      Must(c.Schedule(r.step, {r.data}).status());
    }
  }
  Must(c.Join());
  const double seconds = static_cast<double>((now() - begin).count()) * 1e-9;
  const DispatcherStats after = c.stats();
  const auto done = static_cast<double>(after.steps_done - before.steps_done);
  const auto bytes = static_cast<double>(after.pulled_bytes + after.pushed_bytes -
                                         before.pulled_bytes - before.pushed_bytes);
  std::printf(
      "%-6s workers=%d servers=%d window=%d log=%-4s  %8.0f steps/s  %8.0f pulls+pushes/s  %8.1f "
      "MB/s\n",
      setup.job.c_str(), workers, servers, options.steps_in_flight, folder.empty() ? "no" : "yes",
      done / seconds, 2 * servers * done / seconds, bytes / seconds * 1e-6);
  std::fflush(stdout);
  r.coordinator.reset();
  children.clear();
  std::error_code ignored;
  if (!folder.empty()) std::filesystem::remove_all(folder, ignored);
}

int Main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "ps" && argc == 3) {
    const std::string folder = std::strcmp(argv[2], "none") == 0 ? "" : argv[2];
    const auto server = Must(ParameterServer::Serve({0, kIdentity, {.folder = folder}}));
    return LiveUntilTheEndOfInput(server->port());
  }
  if (first == "worker") {
    WorkerOptions options{.executor = {.identity = kIdentity}};
    options.executor.session.threads = 1;
    const auto worker = Must(WorkerServer::Serve(std::move(options)));
    return LiveUntilTheEndOfInput(worker->port());
  }
  if (argc > 1) {
    Setup setup{.job = first};
    for (int i = 2; i < argc; ++i) {
      const std::string item = argv[i];
      const size_t equals = item.find('=');
      const auto it = setup.values.find(item.substr(0, equals));
      if (equals == std::string::npos || it == setup.values.end()) {
        std::fprintf(stderr, "parameter_bench: expected name=value, got: %s\n", argv[i]);
        return 64;
      }
      it->second = item.substr(equals + 1);
    }
    RunSetup(setup);
    return 0;
  }
  const std::string here = std::filesystem::current_path().string();
  for (const char* job : {"guide", "mlp"}) {
    for (const auto& [window, log] :
         {std::pair("1", "none"), std::pair("1", here.c_str()), std::pair("8", here.c_str())}) {
      Setup setup{.job = job};
      setup.values["window"] =
          std::strcmp(job, "mlp") == 0 && std::strcmp(window, "8") == 0 ? "2" : window;
      setup.values["log"] = log;
      RunSetup(setup);
    }
  }
  return 0;
}

}  // namespace
}  // namespace meshtrain::parameter

int main(int argc, char** argv) { return meshtrain::parameter::Main(argc, argv); }
