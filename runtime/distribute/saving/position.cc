#include "runtime/distribute/saving/position.h"

#include <fmt/format.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

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

// Throws what nlohmann's library throws of a text of another form.
std::vector<train::EpochInfo> ParseHistory(const std::string& text) {
  std::vector<train::EpochInfo> history;
  for (const Json& e : Json::parse(text)) {
    history.push_back({.epoch = e.at("epoch").get<int64_t>(),
                       .step = e.at("step").get<int64_t>(),
                       .train = FromJson(e.at("train")),
                       .validation = FromJson(e.at("validation"))});
  }
  return history;
}

}  // namespace

// Totals are hexadecimal floats, which read back bit for bit.
std::map<std::string, std::string> PositionToMetadata(const train::Position& p) {
  std::map<std::string, std::string> metadata = {{"epoch", std::to_string(p.epoch)},
                                                 {"batch", std::to_string(p.batch)}};
  metadata["examples"] = std::to_string(p.figures.examples);
  for (const auto& [name, total] : p.figures.totals) {
    metadata["total." + name] = fmt::format("{:a}", total);
  }
  if (p.history) metadata["history"] = HistoryText(*p.history);
  return metadata;
}

Result<train::Position> PositionOf(const checkpoint::Index& index, const std::string& path) {
  train::Position position{.step = index.step};
  for (const auto& [key, text] : index.metadata) {
    if (key == "epoch" || key == "batch" || key == "examples") {
      const auto value = ParseInt(text);
      if (!value) return DataLoss(path + ": `" + key + "`: expected a number, got: " + text);
      (key == "epoch"   ? position.epoch
       : key == "batch" ? position.batch
                        : position.figures.examples) = *value;
    } else if (key == "history") {
      try {
        position.history =
            std::make_shared<const std::vector<train::EpochInfo>>(ParseHistory(text));
      } catch (const Json::exception& error) {
        return DataLoss(path + ": `history`: expected a list of epochs, got: " + error.what());
      }
    } else if (key.starts_with("total.")) {
      char* end = nullptr;
      position.figures.totals.emplace_back(key.substr(6), std::strtod(text.c_str(), &end));
      if (end != text.c_str() + text.size()) {
        return DataLoss(path + ": `" + key + "`: expected a number, got: " + text);
      }
    }
  }
  return position;
}

}  // namespace meshtrain::distribute
