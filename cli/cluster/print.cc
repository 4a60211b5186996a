#include "cli/cluster/print.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/cluster/connection.h"
#include "runtime/base/text.h"
#include "runtime/manifest/node.h"

namespace meshtrain::cli {
namespace {

using Json = nlohmann::ordered_json;

// Without what a terminal does not show.
size_t Width(const std::string& cell) {
  size_t width = 0;
  for (size_t i = 0; i < cell.size(); ++i) {
    if (cell[i] == '\033') {
      while (i < cell.size() && cell[i] != 'm') ++i;
    } else if ((static_cast<unsigned char>(cell[i]) & 0xC0) != 0x80) {
      ++width;
    }
  }
  return width;
}

// Plain words without the quotes that JSON gave them, where no reader of YAML takes them for
// anything else.
void Unquote(manifest::Node* node) {
  for (manifest::Node& item : node->list) Unquote(&item);
  for (manifest::Node::Member& member : node->members) Unquote(&member.value);
  const std::string& text = node->scalar;
  const bool letters = std::all_of(
      text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '-'; });
  // yes, no, on, off, true, false, null, y and n are shorter.
  if (text.size() > 5 && letters && std::isalpha(static_cast<unsigned char>(text[0])) != 0) {
    node->quoted = false;
  }
}

}  // namespace

void AddFormatFlag(CLI::App* verb, std::string* format) {
  verb->add_option("-o,--output", *format, "table, json, yaml or name")
      ->check(CLI::IsMember({"table", "json", "yaml", "name"}))
      ->capture_default_str();
}

std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] + 3 - Width(row[i]), ' ');
    }
    while (line.ends_with(' ')) line.pop_back();
    out += line + "\n";
  }
  return out;
}

std::string Objects(const std::vector<std::string>& texts, bool list, const std::string& format) {
  if (format == "name") {
    std::string out;
    for (const std::string& text : texts) {
      const Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
      const std::string name =
          object.is_object() ? object.value(Json::json_pointer("/metadata/name"), "") : "";
      out += std::string(kJobPrefix) + name + "\n";
    }
    return out;
  }
  Json root = {{"apiVersion", "v1"}, {"kind", "List"}, {"items", Json::array()}};
  for (const std::string& text : texts) {
    Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (object.is_object() && object.contains("metadata"))
      object["metadata"].erase("managedFields");
    root["items"].push_back(std::move(object));
  }
  if (!list && !texts.empty()) root = Json(root["items"][0]);
  const std::string json = root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  if (format == "json") return json;
  auto tree = manifest::ParseDocuments(
      json, "answer", {.bytes = int64_t{1} << 30, .nodes = int64_t{1} << 30, .depth = 200});
  if (!tree.ok() || tree->size() != 1) return json;
  Unquote(&tree->front());
  return manifest::ToYaml(tree->front());
}

std::string Age(const std::optional<TimePoint>& since, TimePoint now) {
  if (!since) return "";
  const int64_t s =
      std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::seconds>(now - *since).count());
  if (s < 120) return std::to_string(s) + "s";
  if (s < 120 * 60) return std::to_string(s / 60) + "m";
  if (s < 48 * 3600) return std::to_string(s / 3600) + "h";
  return std::to_string(s / 86400) + "d";
}

std::string Number(const std::optional<double>& number) {
  if (!number) return "";
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", *number);
  return text;
}

std::string Phase(const std::string& phase, const Console& console) {
  if (!console.color) return phase;
  const char* code = phase == "Failed"      ? "31"
                     : phase == "Succeeded" ? "32"
                     : phase == "Running"   ? "36"
                                            : "33";
  return "\033[" + std::string(code) + "m" + phase + "\033[0m";
}

std::vector<std::string> JobRowHead() {
  return {"NAME", "PHASE", "READY", "STEP", "PROGRESS", "LOSS", "ACCURACY", "RESTARTS", "AGE"};
}

std::vector<std::string> JobRow(const api::TrainingJob& job, TimePoint now,
                                const Console& console) {
  const api::JobStatus& status = job.status;
  std::string step, percent, loss, accuracy;
  if (const auto& progress = status.progress) {
    step = std::to_string(progress->step);
    if (progress->total_steps && *progress->total_steps > 0) {
      percent = std::to_string(100 * progress->step / *progress->total_steps) + "%";
    }
    loss = Number(progress->loss);
    accuracy = Number(progress->accuracy);
  }
  return {job.metadata.name,
          Phase(status.phase, console),
          status.ready,
          step,
          percent,
          loss,
          accuracy,
          std::to_string(status.restarts),
          Age(job.metadata.created, now)};
}

}  // namespace meshtrain::cli
