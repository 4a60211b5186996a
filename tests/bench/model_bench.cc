// The training step of a manifest's program, with batches that are in memory: on one device, on
// eight virtual ones that share the batch, and beside them its matrix products and convolutions
// alone, forward and backward, which is what it cannot be faster than. The modes take turns. One
// JSON line each; see README.md.
//   model_bench MANIFEST [seconds per repetition [repetitions]]     in the folder that its paths begin in
// Where the manifest has devices of another kind than cpu, on one of them, and its products there.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/file.h"
#include "runtime/data/pipeline.h"
#include "runtime/execute/loaded_step.h"
#include "runtime/execute/session.h"
#include "runtime/mesh/element_type.h"
#include "runtime/program/builder.h"
#include "runtime/recipe/recipe.h"
#include "runtime/trainer/job/choices.h"
#include "runtime/trainer/mesh_runner.h"
#include "tests/bench/modes.h"

namespace meshtrain::bench {
namespace {

using mesh::Mesh;
using mesh::Tensor;
using mesh::TensorType;
using program::Program;
using program::Value;

constexpr size_t kBatches = 8;

struct Job {
  manifest::Program program;
  std::vector<train::Batch> batches;
  bool on_cpus() const { return program.devices.kind == mesh::DeviceKind::kCpu; }
  std::unique_ptr<execute::Session> Session() const;
};

template <typename T>
T OrDie(Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "model_bench: %s\n", result.status().message().c_str());
    std::exit(1);
  }
  return *std::move(result);
}

std::unique_ptr<execute::Session> Job::Session() const {
  return OrDie(execute::Session::Create(
      {.device_kind = std::string(mesh::DeviceKindName(program.devices.kind))}));
}

Job ReadJob(const std::string& path) {
  Job job;
  job.program = OrDie(recipe::ParseManifest(OrDie(ReadFile(path)), path)).program;
  const auto pipeline = OrDie(data::Pipeline::Create(recipe::TrainPipeline(job.program)));
  while (job.batches.size() < kBatches) {
    auto batch = OrDie(pipeline->Next());
    if (!batch) continue;  // a pass has ended
    job.batches.push_back({std::move(batch->components), batch->size});
  }
  return job;
}

struct Training {
  std::unique_ptr<execute::Session> session;
  std::unique_ptr<trainer::MeshRunner> runner;
  size_t next = 0;
};

std::shared_ptr<Training> Train(const Job& job, int devices) {
  manifest::Program program = job.program;
  program.mesh = {{.name = "batch", .size = devices}};
  const recipe::Declared declared = OrDie(recipe::Declared::Create(program));
  auto training = std::make_shared<Training>();
  training->session = job.Session();
  std::vector<TensorType> types;
  for (const Tensor& component : job.batches[0].components) types.push_back(component.type());
  training->runner = OrDie(
      trainer::MeshRunner::Create(*training->session, declared.mesh(), trainer::TraceOf(declared),
                                  {.types = types, .packing = recipe::PackingOf(program)}));
  MT_CHECK(training->runner->Initialize().ok());
  return training;
}

// A step whose loss is not finite is an error.
Mode StepsOf(const Job& job, std::string name, std::shared_ptr<Training> training) {
  return {.name = std::move(name), .step = [&job, training] {
            OrDie(training->runner->TrainStep(job.batches[training->next]));
            training->next = (training->next + 1) % job.batches.size();
          }};
}

bool IsProduct(const program::Op& op) {
  return op.kind == "matmul" || op.kind == "conv" || op.kind == "conv_input_grad" ||
         op.kind == "conv_filter_grad";
}

// A program of the products of `step`, each of operands of its own.
Program ProductsOf(const Program& step) {
  program::Builder b("products");
  const program::Builder::Scope scope(b);
  int count = 0;
  for (const program::Op& op : step.ops) {
    if (!IsProduct(op)) continue;
    const std::string name = "p" + std::to_string(count++);
    std::vector<program::Operand> operands;
    for (const program::ValueId v : op.operands) {
      operands.emplace_back(b.Input(name + "_" + std::to_string(operands.size()), step.type(v)));
    }
    b.Output(name, b.Append1(op.kind, operands, op.attrs));
  }
  return OrDie(b.Build());
}

Mode Products(const Job& job, const Program& step) {
  struct Alone {
    std::unique_ptr<execute::Session> session;
    std::unique_ptr<execute::LoadedStep> step;
  };
  const Program program = ProductsOf(step);
  auto alone = std::make_shared<Alone>(Alone{.session = job.Session(), .step = {}});
  const Mesh mesh =
      OrDie(Mesh::Create({{.name = "batch", .size = 1}}, {{.kind = job.program.devices.kind}}));
  alone->step = OrDie(alone->session->Load(program, mesh, {}, {}));
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    Tensor x(program.type(program.inputs[i].value));
    mesh::WithElementType(x.type().dtype, [&](auto zero) {
      using T = decltype(zero);
      for (T& v : x.mutable_values<T>()) v = static_cast<T>(0.25F);
    });
    MT_CHECK(alone->step->Feed(i, x).ok());
  }
  return {.name = "products", .step = [alone] { MT_CHECK(alone->step->Run().ok()); }};
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: model_bench MANIFEST [seconds per repetition [repetitions]]\n");
    return 64;
  }
  const Job job = ReadJob(argv[1]);
  const auto one = Train(job, 1);
  std::vector<Mode> modes = {StepsOf(job, "one_device", one),
                             Products(job, one->runner->programs().train_step)};
  if (job.on_cpus()) modes.push_back(StepsOf(job, "virtual8", Train(job, 8)));
  Measure(modes, argc > 2 ? std::atof(argv[2]) : 0.6, argc > 3 ? std::atoi(argv[3]) : 7);
  for (const Mode& mode : modes) Print(mode);
  return 0;
}

}  // namespace
}  // namespace meshtrain::bench

int main(int argc, char** argv) { return meshtrain::bench::Main(argc, argv); }
