#include "runtime/saving/position.h"

#include <fmt/format.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "runtime/base/json_depth.h"
#include "runtime/base/text.h"

namespace meshtrain::saving {
namespace {

using Json = nlohmann::ordered_json;

// Before the name of a mean that fewer examples have than the others.
constexpr std::string_view kExamplesOf = "examples.";

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

// The most that a run can have counted by its step: each epoch, and each batch of one, has a step.
int64_t MostOf(const std::string& key, const checkpoint::Index& index) {
  return key == "epoch" || key == "batch" ? index.step : checkpoint::kMostSteps;
}

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

// strtod takes no text of length 0 and stops at a NUL byte.
std::optional<double> ParseTotal(const std::string& text) {
  char* end = nullptr;
  const double total = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size()) return std::nullopt;
  return total;
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
  for (const auto& [name, count] : p.figures.fewer) {
    metadata[std::string(kExamplesOf) + name] = std::to_string(count);
  }
  for (const train::FigureSums& figure : p.figures.sums) {
    std::string& text = metadata["sums." + figure.name];
    for (const double sum : figure.sums)
      text += fmt::format("{}{:a}", text.empty() ? "" : " ", sum);
  }
  if (p.history) metadata["history"] = HistoryText(*p.history);
  return metadata;
}

Result<train::Position> PositionOf(const checkpoint::Index& index, const std::string& path) {
  train::Position position{.step = index.step};
  for (const auto& [key, text] : index.metadata) {
    const bool of_one = key.starts_with(kExamplesOf);
    if (key == "epoch" || key == "batch" || key == "examples" || of_one) {
      const auto value = ParseInt(text);
      const int64_t most = MostOf(key, index);
      if (!value || *value < 0 || *value > most) {
        return DataLoss(path + ": `" + Excerpt(key) + "`: expected a count from 0 to " +
                        std::to_string(most) + ", got: " + Excerpt(text));
      }
      if (of_one) {
        position.figures.fewer.emplace_back(key.substr(kExamplesOf.size()), *value);
      } else {
        (key == "epoch"   ? position.epoch
         : key == "batch" ? position.batch
                          : position.figures.examples) = *value;
      }
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
    } else if (key.starts_with("total.")) {
      const auto total = ParseTotal(text);
      if (!total) {
        return DataLoss(path + ": `" + Excerpt(key) +
                        "`: expected a number, got: " + Excerpt(text));
      }
      position.figures.totals.emplace_back(key.substr(6), *total);
    } else if (key.starts_with("sums.")) {
      train::FigureSums& figure = position.figures.sums.emplace_back();
      figure.name = key.substr(5);
      for (const std::string& word : Split(text, ' ')) {
        const auto sum = ParseTotal(word);
        if (!sum) {
          return DataLoss(path + ": `" + Excerpt(key) +
                          "`: expected numbers, got: " + Excerpt(word));
        }
        figure.sums.push_back(*sum);
      }
    }
  }
  return position;
}

}  // namespace meshtrain::saving
