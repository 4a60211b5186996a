#include "runtime/distribute/saving/position.h"

#include <fmt/format.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/base/json_depth.h"
#include "runtime/base/text.h"

namespace meshtrain::distribute {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const train::Scalars& scalars) {
  Json json = Json::object();
  for (const auto& [name, value] : scalars) json[name] = value;  // null where not finite
  return json;
}

train::Scalars FromJson(const Json& json) {
  train::Scalars scalars;
  for (const auto& [name, value] : json.items()) {
    scalars.emplace_back(
        name, value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>());
  }
  return scalars;
}

// Without times: the processes of a mesh save the same.
std::string HistoryText(const std::vector<train::EpochInfo>& history) {
  Json list = Json::array();
  for (const train::EpochInfo& e : history) {
    list.push_back({{"epoch", e.epoch},
                    {"step", e.step},
                    {"train", ToJson(e.train)},
                    {"validation", ToJson(e.validation)}});
  }
  return list.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Steps, epochs and batches are counted from 0, and each epoch and each batch of one has a step.
bool IsCount(int64_t n, const checkpoint::Index& index) { return n >= 0 && n <= index.step; }

int64_t CountOf(const Json& epoch, const char* key) {
  const Json& value = epoch.at(key);
  const bool fits =
      value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{checkpoint::kMostSteps};
  if (!fits) {
    throw Json::other_error::create(501, std::string(key) + " is no count: " + value.dump(),
                                    &value);
  }
  return value.get<int64_t>();
}

// Throws what nlohmann's library throws of a text of another form.
std::vector<train::EpochInfo> ParseHistory(const std::string& text) {
  std::vector<train::EpochInfo> history;
  for (const Json& e : Json::parse(text)) {
    history.push_back({.epoch = CountOf(e, "epoch"),
                       .step = CountOf(e, "step"),
                       .train = FromJson(e.at("train")),
                       .validation = FromJson(e.at("validation"))});
  }
  return history;
}

}  // namespace

// Sums are hexadecimal floats, which read back bit for bit.
std::map<std::string, std::string> PositionToMetadata(const train::Position& p) {
  std::map<std::string, std::string> metadata = {{"epoch", std::to_string(p.epoch)},
                                                 {"batch", std::to_string(p.batch)}};
  for (const auto& [name, sum] : p.sums) metadata["sum." + name] = fmt::format("{:a}", sum);
  if (p.history) metadata["history"] = HistoryText(*p.history);
  return metadata;
}

Result<train::Position> PositionOf(const checkpoint::Index& index, const std::string& path) {
  train::Position position{.step = index.step};
  for (const auto& [key, text] : index.metadata) {
    if (key == "epoch" || key == "batch") {
      const auto value = ParseInt(text);
      if (!value || !IsCount(*value, index)) {
        return DataLoss(path + ": `" + key + "`: expected a count from 0 to its step, " +
                        std::to_string(index.step) + ", got: " + Excerpt(text));
      }
      (key == "epoch" ? position.epoch : position.batch) = *value;
    } else if (key == "history") {
      if (const Status deep = CheckJsonDepth(text); !deep.ok()) {
        return DataLoss(path + ": `history`: " + deep.message());
      }
      try {
        position.history =
            std::make_shared<const std::vector<train::EpochInfo>>(ParseHistory(text));
      } catch (const Json::exception& error) {
        return DataLoss(path +
                        ": `history`: expected a list of epochs, got: " + Excerpt(error.what()));
      }
    } else if (key.starts_with("sum.")) {
      // strtod takes no text of length 0 and stops at a NUL byte.
      char* end = nullptr;
      position.sums[key.substr(4)] = std::strtod(text.c_str(), &end);
      if (text.empty() || end != text.c_str() + text.size()) {
        return DataLoss(path + ": `" + Excerpt(key) +
                        "`: expected a number, got: " + Excerpt(text));
      }
    }
  }
  return position;
}

}  // namespace meshtrain::distribute
