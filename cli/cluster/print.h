// Objects of the API server for people and for programs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/verbs.h"
#include "operator/api/training_job.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace meshtrain::cli {

inline constexpr std::string_view kFormats[] = {"table", "json", "yaml", "name"};
// -o, --output, one of `kFormats`.
void AddFormatFlag(CLI::App* verb, std::string* format);

// Columns aligned as kubectl does, three spaces between them; no row: "".
std::string Table(const std::vector<std::vector<std::string>>& rows);

// Objects as JSON texts, of which several become a List. `format`: json, yaml or name.
std::string Objects(const std::vector<std::string>& texts, bool list, const std::string& format);

// "5s", "3m", "2h", "4d": kubectl's ages; "" for what is not known.
std::string Age(const std::optional<TimePoint>& since, TimePoint now);
std::string Number(const std::optional<double>& number);  // 0.0412; "" where there is none

// The phase, coloured where the console is a terminal.
std::string Phase(const std::string& phase, const Console& console);

// One line of the table of jobs: NAME PHASE READY STEP PROGRESS LOSS ACCURACY RESTARTS AGE.
std::vector<std::string> JobRow(const api::TrainingJob& job, TimePoint now, const Console& console);
std::vector<std::string> JobRowHead();

}  // namespace meshtrain::cli
