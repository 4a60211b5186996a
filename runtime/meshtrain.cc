#include "runtime/meshtrain.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "runtime/base/file.h"
#include "runtime/cluster/contract.h"
#include "runtime/cluster/exit_code.h"
#include "runtime/report/report.h"
#include "runtime/sharding/sharding.h"

namespace meshtrain {
namespace {

void SayError(std::string_view program, std::string_view what) {
  std::fprintf(stderr, "%s: %s\n", std::string(program).c_str(), std::string(what).c_str());
}

}  // namespace

Status CheckAxesUsed(const Mesh& mesh, const std::vector<std::string>& used) {
  sharding::Given given;
  for (const std::string& name : used) {
    const auto axis = mesh.FindAxis(name);
    if (!axis) continue;
    given.inputs.emplace(name, Layout::Replicated(mesh, 1).WithDim(0, {*axis}));
  }
  return sharding::CheckAxesUsed(mesh, given).From(Origin::kManifest);
}

Result<Job> Job::Join(const Mesh& mesh, SessionOptions options) {
  Job job;
  MT_ASSIGN_OR_RETURN(job.team, JoinTeam());
  MT_ASSIGN_OR_RETURN(job.mesh,
                      mesh.OverProcesses(job.team == nullptr ? 1 : job.team->processes()));
  if (job.team != nullptr) {
    options.process = job.team->process();
    options.communicator = job.team->communicators();
  }
  if (options.devices == 0) {
    options.devices = static_cast<int>(job.mesh.LocalRanks(options.process).size());
  }
  MT_ASSIGN_OR_RETURN(job.session, Session::Create(std::move(options)));
  return job;
}

Status Job::Leave() const {
  return team == nullptr ? OkStatus() : team->Leave(std::chrono::seconds(30));
}

std::string EpochLine(const train::EpochInfo& epoch) {
  std::string line = "epoch " + std::to_string(epoch.epoch) + ":";
  const auto add = [&](const char* what, const train::Scalars& scalars) {
    for (const auto& [name, value] : scalars) {
      char text[32];
      std::snprintf(text, sizeof text, " %.4f", value);
      line += (line.back() == ':' ? " " : ", ") + std::string(what) + " " + name + text;
    }
  };
  add("train", epoch.train);
  add("test", epoch.validation);
  return line;
}

Status WriteCurves(const std::string& path, const std::string& title,
                   const train::Position& position) {
  report::EpochHistory epochs;
  for (const train::EpochInfo& e :
       position.history ? *position.history : std::vector<train::EpochInfo>()) {
    epochs.Add({.epoch = e.epoch,
                .train = {e.train.begin(), e.train.end()},
                .test = {e.validation.begin(), e.validation.end()},
                .seconds = std::chrono::duration<double>(e.seconds).count()});
  }
  return WriteFileAtomically(
      path, report::RenderPage({.title = title,
                                .subtitle = std::to_string(position.epoch) + " epochs",
                                .epochs = epochs.Summary()}));
}

int RunMain(std::string_view program, const Status& end) {
  if (!end.ok()) SayError(program, end.ToString());
  return cluster::ExitCodeOf(end);
}

int EndOfUsage(std::string_view program, std::string_view what) {
  SayError(program, what);
  return cluster::kExitUsage;
}

}  // namespace meshtrain
