// The core MLP example as a program: trains on IDX files over a mesh of virtual devices and prints
// the figures of each epoch. The same model as deploy/examples/mnist-mlp.yaml, written by hand.
//
//   core_mlp --data data --mesh batch=8 --curves curves.html
//   core_mlp --data data --mesh batch=4,model=2 --checkpoint checkpoints    again: goes on from there
//   TF_CONFIG=... core_mlp --data data --mesh batch=8                       in each of its processes
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "deploy/examples/core_mlp/model.h"
#include "runtime/base/file.h"
#include "runtime/cluster/contract.h"
#include "runtime/cluster/exit_code.h"
#include "runtime/data/pipeline.h"
#include "runtime/report/report.h"

namespace core_mlp {
namespace {

struct Flags {
  std::string data = "data";
  std::string mesh = "batch=8";
  int64_t take = 5000;
  int64_t batch = 128;
  int epochs = 3;
  std::string checkpoint;
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

// The model and its optimizer in a session, their steps, and how far they have come.
class Training {
 public:
  // `team`: the processes that share the mesh; null: this one alone.
  static Result<std::unique_ptr<Training>> Create(const Flags& flags, const Mesh& mesh,
                                                  Digits digits, Team* team) {
    auto t = std::unique_ptr<Training>(new Training(flags, mesh, std::move(digits), team));
    SessionOptions options{.isolated = flags.isolated};
    if (team != nullptr) {
      options.process = team->process();
      options.communicator = team->communicators();
    }
    MT_ASSIGN_OR_RETURN(t->session_, Session::Create(std::move(options)));
    MT_ASSIGN_OR_RETURN(t->model_, MakeMlp(*t->session_, WeightLayouts(mesh)));
    MT_ASSIGN_OR_RETURN(t->optimizer_, Adam::Create(*t->session_, t->model_.variables()));
    t->train_step_.emplace(*t->session_, "train_step", std::vector<std::string>{"x", "y"},
                           [&t = *t](const Value& x, const Value& y) {
                             return TrainStep(t.model_, t.optimizer_, x, y);
                           });
    t->test_step_.emplace(
        *t->session_, "test_step", std::vector<std::string>{"x", "y"},
        [&t = *t](const Value& x, const Value& y) { return TestStep(t.model_, x, y); });
    return t;
  }

  int64_t epoch() const { return at_.epoch; }  // finished ones
  bool chief() const { return team_ == nullptr || team_->chief(); }

  // Goes on from the newest checkpoint, where there is one.
  Status Resume() {
    if (flags_.checkpoint.empty()) return OkStatus();
    std::vector<Variable> variables = model_.trainable();
    for (const DVariable& v : optimizer_.variables()) variables.push_back(v);
    MT_ASSIGN_OR_RETURN(checkpoints_,
                        SessionCheckpoints::Create(*session_, std::move(variables),
                                                   {.folder = flags_.checkpoint, .team = team_}));
    MT_ASSIGN_OR_RETURN(const auto restored, checkpoints_->Restore());
    if (!restored) return OkStatus();
    at_ = restored->position;
    if (at_.history) history_ = *at_.history;
    if (chief()) {
      std::printf("resuming from %s at step %lld\n", restored->path.c_str(),
                  static_cast<long long>(at_.step));
    }
    return restored->cursor ? digits_.train->Restore(*restored->cursor).At(restored->path)
                            : OkStatus();
  }

  Status RunEpoch() {
    train::EpochInfo info{.epoch = at_.epoch + 1, .epochs = flags_.epochs};
    MT_ASSIGN_OR_RETURN(info.train, RunPass(*digits_.train, *train_step_, &at_.step));
    MT_ASSIGN_OR_RETURN(info.validation, RunPass(*digits_.test, *test_step_, nullptr));
    info.step = at_.step;
    if (chief()) {
      std::printf(
          "epoch %lld: train loss %.4f, train accuracy %.4f, test loss %.4f, test accuracy %.4f\n",
          static_cast<long long>(info.epoch), info.train[0].second, info.train[1].second,
          info.validation[0].second, info.validation[1].second);
      std::fflush(stdout);
    }
    history_.push_back(std::move(info));
    ++at_.epoch;
    return OkStatus();
  }

  Status Save() {
    if (checkpoints_ == nullptr) return OkStatus();
    at_.history = std::make_shared<const std::vector<train::EpochInfo>>(history_);
    return checkpoints_->Save(at_, digits_.train->cursor());
  }

  report::Report Report() const {
    report::Report report{
        .title = "core MLP",
        .subtitle = std::to_string(flags_.epochs) + " epochs on " + mesh_.ToString()};
    for (const train::EpochInfo& e : history_) {
      report.epochs.push_back({.epoch = e.epoch,
                               .train = {e.train.begin(), e.train.end()},
                               .test = {e.validation.begin(), e.validation.end()},
                               .seconds = 0});
    }
    return report;
  }

 private:
  Training(Flags flags, Mesh mesh, Digits digits, Team* team)
      : flags_(std::move(flags)), mesh_(std::move(mesh)), digits_(std::move(digits)), team_(team) {}

  // Runs `step` over one pass of the data; the means of the batches' losses and accuracies.
  // `steps`: counts them, as steps of training.
  Result<train::Scalars> RunPass(data::Pipeline& batches, Function& step, int64_t* steps) {
    double loss = 0, accuracy = 0;
    int64_t count = 0;
    for (;;) {
      MT_ASSIGN_OR_RETURN(const std::optional<data::Batch> batch, batches.Next());
      if (!batch) break;
      MT_ASSIGN_OR_RETURN(
          const auto xy, RepackBatch(*session_, batch->components[0], batch->components[1], mesh_));
      MT_ASSIGN_OR_RETURN(const std::vector<DTensor> results, step(xy.first, xy.second));
      MT_ASSIGN_OR_RETURN(const Tensor batch_loss, session_->ToHost(results[0]));
      MT_ASSIGN_OR_RETURN(const Tensor batch_accuracy, session_->ToHost(results[1]));
      if (flags_.print_steps && steps != nullptr && chief()) {
        std::printf("step %.9g %.9g\n", batch_loss.Item(), batch_accuracy.Item());
      }
      loss += batch_loss.Item();
      accuracy += batch_accuracy.Item();
      ++count;
    }
    if (steps != nullptr) *steps += count;
    return train::Scalars{{"loss", loss / static_cast<double>(count)},
                          {"accuracy", accuracy / static_cast<double>(count)}};
  }

  const Flags flags_;
  const Mesh mesh_;
  const Digits digits_;
  Team* const team_;
  std::unique_ptr<Session> session_;
  Mlp model_;
  Adam optimizer_;
  std::optional<Function> train_step_, test_step_;
  std::unique_ptr<SessionCheckpoints> checkpoints_;  // null: nothing is saved
  train::Position at_;
  std::vector<train::EpochInfo> history_;
};

Status Main(const Flags& flags) {
  MT_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Parse(flags.mesh));
  MT_RETURN_IF_ERROR(CheckMesh(mesh));
  MT_ASSIGN_OR_RETURN(Digits digits, OpenDigits(flags));
  MT_ASSIGN_OR_RETURN(const auto team, JoinTeam());  // lives as long as what it links
  MT_ASSIGN_OR_RETURN(const Mesh spread,
                      mesh.OverProcesses(team == nullptr ? 1 : team->processes()));

  MT_ASSIGN_OR_RETURN(const auto training,
                      Training::Create(flags, spread, std::move(digits), team.get()));
  MT_RETURN_IF_ERROR(training->Resume());
  while (training->epoch() < flags.epochs) {
    MT_RETURN_IF_ERROR(training->RunEpoch());
    MT_RETURN_IF_ERROR(training->Save());
  }
  if (training->chief() && !flags.curves.empty()) {
    MT_RETURN_IF_ERROR(WriteFileAtomically(flags.curves, report::RenderPage(training->Report())));
  }
  return team == nullptr ? OkStatus() : team->Leave(std::chrono::seconds(30));
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
  app.add_option("--checkpoint", flags.checkpoint,
                 "Save into this folder after each epoch, and go on from the newest that is there");
  app.add_option("--curves", flags.curves, "Write the curves to this HTML file");
  app.add_flag("--isolated", flags.isolated, "Every device with its own memory");
  app.add_flag("--print-steps", flags.print_steps,
               "Print the loss and accuracy of each training step");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : meshtrain::cluster::kExitUsage;
  }
  const meshtrain::Status end = core_mlp::Main(flags);
  if (!end.ok()) std::fprintf(stderr, "core_mlp: %s\n", end.ToString().c_str());
  return meshtrain::cluster::ExitCodeOf(end);
}
