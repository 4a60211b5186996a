// What a job says on stdout: where it saves, why it ends, what it leaves.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/train/callbacks.h"
#include "runtime/train/loop.h"
#include "runtime/trainer/job/config.h"
#include "runtime/trainer/job/reporter.h"

namespace meshtrain::trainer {

// A line on stdout, at once.
void Say(const std::string& line);
// The last progress, for the operator that may look after this process is gone.
void TellTermination(const JobConfig& config, const std::string& message);
// The epochs, and where everything lies. `checkpoint`: the last one's folder, "" where there is
// none. `model`: whether this run has left one.
void TellResults(const JobConfig& config, const Reporter& reporter, const std::string& checkpoint,
                 bool model);
// What the model has written, and where it lies.
void TellText(const std::string& text, const std::string& path);
void TellStopped(int64_t step, bool saved);
// When the job saves and how many it keeps.
void TellSaving(const std::string& folder, const train::SaveTimes& times, int64_t keep);
// A job that begins at its end, or `at` a place behind it where the run before was asked for more
// epochs: all that is left is to write what it leaves.
void TellNothingLeft(const std::string& checkpoint, const train::Position& at, int64_t epochs);
// Why training ended before its last epoch, and whose weights are left.
void TellEarlyEnd(const train::FitResult& result, const train::EarlyStopping* early,
                  std::optional<int64_t> best_step, Reporter& reporter);

}  // namespace meshtrain::trainer
