// The core MLP example as a program: trains on IDX files over a mesh of virtual devices and prints
// the figures of each epoch. The same model as deploy/examples/mnist-mlp.yaml, written by hand.
//
//   core_mlp --data data --mesh batch=8 --curves curves.html
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "deploy/examples/core_mlp/model.h"
#include "runtime/base/file.h"
#include "runtime/cluster/contract.h"
#include "runtime/cluster/exit_code.h"
#include "runtime/data/pipeline.h"
#include "runtime/telemetry/report.h"

namespace core_mlp {
namespace {

struct Flags {
  std::string data = "data";
  std::string mesh = "batch=8";
  int64_t take = 5000;
  int64_t batch = 128;
  int epochs = 3;
  std::string curves;
  bool isolated = false;
  bool print_steps = false;
};

Result<std::unique_ptr<data::Pipeline>> OpenSplit(const std::string& images,
                                                  const std::string& labels, const Flags& flags) {
  data::PipelineSpec spec;
  spec.source = {data::IdxFiles{images, labels}, flags.take};
  spec.stages = {data::MapStage{{data::Scale{1.0 / 255}}}, data::BatchStage{flags.batch}};
  return data::Pipeline::Create(std::move(spec));
}

// Runs `step` over one pass of the data; the means of the batches' losses and accuracies.
Result<std::map<std::string, double>> RunEpoch(Session& session, const Mesh& mesh,
                                               data::Pipeline& batches, Function& step,
                                               bool print_steps) {
  double loss = 0, accuracy = 0;
  int64_t count = 0;
  for (;;) {
    MT_ASSIGN_OR_RETURN(const std::optional<data::Batch> batch, batches.Next());
    if (!batch) break;
    MT_ASSIGN_OR_RETURN(const auto xy,
                        RepackBatch(session, batch->components[0], batch->components[1], mesh));
    MT_ASSIGN_OR_RETURN(const std::vector<DTensor> results, step(xy.first, xy.second));
    MT_ASSIGN_OR_RETURN(const Tensor batch_loss, session.ToHost(results[0]));
    MT_ASSIGN_OR_RETURN(const Tensor batch_accuracy, session.ToHost(results[1]));
    if (print_steps) std::printf("step %.9g %.9g\n", batch_loss.Item(), batch_accuracy.Item());
    loss += batch_loss.Item();
    accuracy += batch_accuracy.Item();
    ++count;
  }
  return std::map<std::string, double>{{"loss", loss / static_cast<double>(count)},
                                       {"accuracy", accuracy / static_cast<double>(count)}};
}

struct Digits {
  std::unique_ptr<data::Pipeline> train, test;
};

Result<Digits> OpenDigits(const Flags& flags) {
  MT_ASSIGN_OR_RETURN(auto train, OpenSplit(flags.data + "/train-images-idx3-ubyte.gz",
                                            flags.data + "/train-labels-idx1-ubyte.gz", flags));
  MT_ASSIGN_OR_RETURN(auto test, OpenSplit(flags.data + "/t10k-images-idx3-ubyte.gz",
                                           flags.data + "/t10k-labels-idx1-ubyte.gz", flags));
  return Digits{std::move(train), std::move(test)};
}

Result<telemetry::Report> Train(const Flags& flags, const Mesh& mesh, const Digits& digits) {
  MT_ASSIGN_OR_RETURN(const auto session, Session::Create({.isolated = flags.isolated}));
  MT_ASSIGN_OR_RETURN(const Mlp model, MakeMlp(*session, WeightLayouts(mesh)));
  MT_ASSIGN_OR_RETURN(const Adam optimizer, Adam::Create(*session, model.variables()));

  Function train_step(*session, "train_step", {"x", "y"}, [&](const Value& x, const Value& y) {
    return TrainStep(model, optimizer, x, y);
  });
  Function test_step(*session, "test_step", {"x", "y"},
                     [&](const Value& x, const Value& y) { return TestStep(model, x, y); });

  telemetry::Report report;
  report.title = "core MLP";
  report.subtitle = std::to_string(flags.epochs) + " epochs on " + flags.mesh;
  for (int epoch = 0; epoch < flags.epochs; ++epoch) {
    MT_ASSIGN_OR_RETURN(auto train,
                        RunEpoch(*session, mesh, *digits.train, train_step, flags.print_steps));
    MT_ASSIGN_OR_RETURN(auto test, RunEpoch(*session, mesh, *digits.test, test_step, false));
    std::printf(
        "epoch %d: train loss %.4f, train accuracy %.4f, test loss %.4f, test accuracy %.4f\n",
        epoch + 1, train["loss"], train["accuracy"], test["loss"], test["accuracy"]);
    report.epochs.push_back(
        {.epoch = epoch + 1, .train = std::move(train), .test = std::move(test), .seconds = 0});
  }
  return report;
}

// Says what went wrong; the exit code is the one that workers have for it.
int Fail(const Status& status, int (*exit_code)(const Status&)) {
  std::fprintf(stderr, "core_mlp: %s\n", status.ToString().c_str());
  return exit_code(status);
}

int Main(const Flags& flags) {
  const auto mesh = Mesh::Parse(flags.mesh);
  if (!mesh.ok()) return Fail(mesh.status(), cluster::ManifestExitCode);
  if (const Status used = CheckMesh(*mesh); !used.ok()) {
    return Fail(used, cluster::ManifestExitCode);
  }
  const auto digits = OpenDigits(flags);
  if (!digits.ok()) return Fail(digits.status(), cluster::DataExitCode);
  const auto report = Train(flags, *mesh, *digits);
  if (!report.ok()) return Fail(report.status(), cluster::ManifestExitCode);
  if (flags.curves.empty()) return cluster::kExitDone;
  const Status written = WriteFileAtomically(flags.curves, telemetry::RenderReport(*report));
  return written.ok() ? cluster::kExitDone : Fail(written, cluster::OutputExitCode);
}

}  // namespace
}  // namespace core_mlp

int main(int argc, char** argv) {
  core_mlp::Flags flags;
  CLI::App app("Trains the core MLP example.");
  app.add_option("--data", flags.data, "Folder with the four IDX files, named as MNIST's are")
      ->capture_default_str();
  app.add_option("--mesh", flags.mesh, "Mesh, as batch=8")->capture_default_str();
  app.add_option("--take", flags.take, "Images of each set")->capture_default_str();
  app.add_option("--batch", flags.batch, "Global batch size")->capture_default_str();
  app.add_option("--epochs", flags.epochs, "Passes over the data")->capture_default_str();
  app.add_option("--curves", flags.curves, "Write the curves to this HTML file");
  app.add_flag("--isolated", flags.isolated, "Every device with its own memory");
  app.add_flag("--print-steps", flags.print_steps,
               "Print the loss and accuracy of each training step");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : meshtrain::cluster::kExitUsage;
  }
  return core_mlp::Main(flags);
}
