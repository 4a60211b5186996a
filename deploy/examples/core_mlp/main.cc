// The core MLP example as a program: trains on IDX files over a mesh of virtual devices and prints
// the figures of each epoch. The same model as deploy/examples/mnist-mlp.yaml, written by hand.
//
//   core_mlp --data data --mesh batch=8 --curves curves.html
//   core_mlp --data data --mesh batch=4,model=2 --checkpoint checkpoints    again: goes on from there
//   TF_CONFIG=... core_mlp --data data --mesh batch=8                       in each of its processes
#include <CLI/CLI.hpp>

#include "deploy/examples/core_mlp/model.h"

namespace core_mlp {
struct Flags {
  std::string data = "data", mesh = "batch=8", checkpoint, curves;
  int64_t take = 5000, batch = 128, epochs = 3;
  SessionOptions session;
};

Result<std::unique_ptr<data::Pipeline>> Open(const std::string& prefix, const Flags& flags) {
  data::PipelineSpec spec;
  spec.source = {data::IdxFiles{prefix + "-images-idx3-ubyte.gz", prefix + "-labels-idx1-ubyte.gz"},
                 flags.take};
  spec.stages = {data::MapStage{{data::Scale{1.0 / 255}}}, data::BatchStage{flags.batch}};
  return data::Pipeline::Create(std::move(spec));
}

Status Main(const Flags& flags) {
  MT_ASSIGN_OR_RETURN(const Mesh asked, Mesh::Parse(flags.mesh));
  MT_RETURN_IF_ERROR(CheckAxesUsed(asked, {"batch", "model"}));
  MT_ASSIGN_OR_RETURN(const auto train, Open(flags.data + "/train", flags));
  MT_ASSIGN_OR_RETURN(const auto test, Open(flags.data + "/t10k", flags));
  // This process, or those that TF_CONFIG names, each with its part of the mesh.
  MT_ASSIGN_OR_RETURN(const Job job, Job::Join(asked, flags.session));
  Session& session = *job.session;
  MT_ASSIGN_OR_RETURN(const Mlp model, MakeMlp(session, WeightLayouts(job.mesh)));
  MT_ASSIGN_OR_RETURN(const Adam optimizer, Adam::Create(session, model.variables()));
  MT_ASSIGN_OR_RETURN(const auto loss, MeanMetric::Create(session, "loss", job.mesh));
  MT_ASSIGN_OR_RETURN(const auto accuracy, MeanMetric::Create(session, "accuracy", job.mesh));
  const auto counted = [&](Outputs figures) {
    loss.Update(figures[0].second);
    accuracy.Update(figures[1].second);
    return figures;
  };
  Function train_step(session, "train_step", {"x", "y"}, [&](const Value& x, const Value& y) {
    return counted(TrainStep(model, optimizer, x, y));
  });
  Function test_step(session, "test_step", {"x", "y"}, [&](const Value& x, const Value& y) {
    return counted(TestStep(model, x, y));
  });

  train::Position at;
  std::unique_ptr<SessionCheckpoints> checkpoints;
  if (!flags.checkpoint.empty()) {
    std::vector<Variable> all = model.variables();
    all.insert(all.end(), optimizer.slots.begin(), optimizer.slots.end());
    all.push_back(optimizer.t);
    MT_ASSIGN_OR_RETURN(checkpoints, SessionCheckpoints::Create(session, std::move(all),
                                                                {.folder = flags.checkpoint,
                                                                 .team = job.team.get(),
                                                                 .data = train.get()}));
    MT_ASSIGN_OR_RETURN(const auto restored, checkpoints->Restore());
    if (restored) at = restored->position;
    if (restored && job.chief()) {
      std::printf("resuming from %s at step %ld\n", restored->path.c_str(), at.step);
    }
  }

  // Runs `step` over one pass of the data; the means of the batches' losses and accuracies.
  const auto run_pass = [&](data::Pipeline& batches, Function& step) -> Result<train::Scalars> {
    MT_RETURN_IF_ERROR(loss.Reset());
    MT_RETURN_IF_ERROR(accuracy.Reset());
    for (;;) {
      MT_ASSIGN_OR_RETURN(const auto batch, batches.Next());
      if (!batch) break;
      MT_ASSIGN_OR_RETURN(const DTensor x, Repack(session, (*batch)["x"], job.mesh));
      MT_ASSIGN_OR_RETURN(const DTensor y, Repack(session, (*batch)["y"], job.mesh));
      MT_RETURN_IF_ERROR(step(x, y).status());
      if (&step == &train_step) ++at.step;
    }
    MT_ASSIGN_OR_RETURN(const double mean, loss.Result());
    MT_ASSIGN_OR_RETURN(const double correct, accuracy.Result());
    return train::Scalars{{"loss", mean}, {"accuracy", correct}};
  };
  while (at.epoch < flags.epochs) {
    train::EpochInfo info{.epoch = at.epoch + 1, .epochs = flags.epochs};
    MT_ASSIGN_OR_RETURN(info.train, run_pass(*train, train_step));
    MT_ASSIGN_OR_RETURN(info.validation, run_pass(*test, test_step));
    if (job.chief()) std::puts(EpochLine(info).c_str());
    at.EndEpoch(std::move(info));
    if (checkpoints) MT_RETURN_IF_ERROR(checkpoints->Save(at));
  }
  if (job.chief() && !flags.curves.empty()) {
    MT_RETURN_IF_ERROR(WriteCurves(flags.curves, "core MLP on " + flags.mesh, at));
  }
  return job.Leave();
}
}  // namespace core_mlp

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // each epoch's line as it ends, into a pipe too
  core_mlp::Flags flags;
  CLI::App app("Trains the core MLP example.");
  app.option_defaults()->always_capture_default();
  app.add_option("--data", flags.data, "Folder with the four IDX files, named as MNIST's are");
  app.add_option("--mesh", flags.mesh, "Mesh, as batch=8");
  app.add_option("--device", flags.session.device_kind, "Kind of devices, as cpu or cuda");
  app.add_option("--take", flags.take, "Images of each set")->check(CLI::PositiveNumber);
  app.add_option("--batch", flags.batch, "Global batch size")->check(CLI::PositiveNumber);
  app.add_option("--epochs", flags.epochs, "Passes over the data")->check(CLI::NonNegativeNumber);
  app.add_option("--checkpoint", flags.checkpoint, "Save here after each epoch, and go on from it");
  app.add_option("--curves", flags.curves, "Write the curves to this HTML file");
  app.add_flag("--isolated", flags.session.isolated, "Every device with its own memory");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    return meshtrain::EndOfUsage("core_mlp", error.what());
  }
  return meshtrain::RunMain("core_mlp", core_mlp::Main(flags));
}
