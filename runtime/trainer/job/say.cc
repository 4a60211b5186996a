#include "runtime/trainer/job/say.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <vector>

#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/base/text.h"
#include "runtime/trainer/job/choices.h"

namespace meshtrain::trainer {

namespace {

// Kubernetes' default for a container's terminationMessagePath.
constexpr char kTerminationLog[] = "/dev/termination-log";

}  // namespace

void Say(const std::string& line) {
  std::printf("%s\n", Printable(line).c_str());
  std::fflush(stdout);
}

void TellTermination(const JobConfig& config, const std::string& message) {
  std::string path = config.job.termination_log;
  if (path.empty() && !config.job.job.empty() && ::access(kTerminationLog, F_OK) == 0) {
    path = kTerminationLog;
  }
  if (path.empty()) return;
  // The container's runtime mounts it by itself, so it cannot be renamed over.
  if (const Status written = WriteFileInPlace(path, message); !written.ok()) {
    LogWarning("cannot write the termination message", {{"error", written.message()}});
  }
}

void TellResults(const JobConfig& config, const Reporter& reporter, const std::string& checkpoint,
                 bool model) {
  const std::string& out = config.output;
  Say(fmt::format(
      "\n{}\ncurves      {}/report.html\nmetrics     {}/metrics.jsonl\nevents      {}/events\n"
      "plan        {}/plan.txt",
      reporter.EpochTable(), out, out, out, out));
  if (!checkpoint.empty()) Say("checkpoint  " + checkpoint);
  if (model) Say("model       " + ModelPath(config));
}

void TellSaving(const std::string& folder, const train::SaveTimes& times, int64_t keep) {
  std::vector<std::string> when;
  if (times.every_steps > 0) when.push_back(fmt::format("every {} steps", times.every_steps));
  if (times.each_epoch) when.emplace_back("after each epoch");
  if (times.at_latest > Duration(0)) {
    when.push_back(fmt::format(
        "every {} min", std::chrono::duration_cast<std::chrono::minutes>(times.at_latest).count()));
  }
  when.emplace_back("at the end");
  Say(fmt::format(
      "checkpoints in {}: {}; {}", folder, Join(when, ", "),
      keep > 0 ? fmt::format("the newest {} stay, older ones are removed", keep) : "all stay"));
}

void TellNothingLeft(const std::string& checkpoint, const train::Position& at, int64_t epochs) {
  const auto count = [](int64_t n) { return fmt::format("{} {}", n, n == 1 ? "epoch" : "epochs"); };
  const bool beyond = at.epoch > epochs || (at.epoch == epochs && at.batch > 0);
  Say(fmt::format("nothing is left to train: {} ", checkpoint) +
      (beyond ? fmt::format("has trained {}{}, asked for: {}", count(at.epoch),
                            at.batch > 0 ? fmt::format(" and {} steps", at.batch) : "", epochs)
              : "is the end of " + count(epochs)));
}

void TellEarlyEnd(const train::FitResult& result, const train::EarlyStopping* early,
                  std::optional<int64_t> best_step, Reporter& reporter) {
  if (result.end == train::FitEnd::kStopped) {
    Say("stopped early: " + result.message);
    reporter.AddFact("stopped early", result.message);
  }
  const bool leaves_model = result.end != train::FitEnd::kNotFinite;
  if (leaves_model && best_step && *best_step != result.position.step) {
    const auto& best = *early->best();
    const std::string whose = fmt::format("epoch {}, step {}, {} {:.4f}", best.epoch, best.step,
                                          early->monitor(), best.value);
    Say("the model is that of the best epoch: " + whose);
    reporter.AddFact("model of", whose);
  }
}

void TellText(const std::string& text, const std::string& path) {
  Say(fmt::format("text        {}\n\n{}", path, text));
}

void TellStopped(int64_t step, bool saved) {
  Say(saved ? fmt::format("stopped at step {}, saved; run again to go on", step)
            : fmt::format("stopped at step {}: nothing is saved; run again to begin", step));
}

}  // namespace meshtrain::trainer
