#include "runtime/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "runtime/base/text.h"

namespace meshtrain {
namespace {

struct Logger {
  std::shared_ptr<spdlog::logger> out;
  LogFormat format = LogFormat::kKeyValue;
  Logger() {
    out = std::make_shared<spdlog::logger>("meshtrain",
                                           std::make_shared<spdlog::sinks::stderr_sink_mt>());
    out->set_pattern("%v");
    out->set_level(spdlog::level::info);
  }
};

Logger& TheLogger() {
  static Logger logger;  // set up by main, then only read
  return logger;
}

constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                 spdlog::level::warn, spdlog::level::err};
constexpr std::string_view kNames[] = {"debug", "info", "warning", "error"};

// Quoted when a reader could not tell where the value ends.
std::string Quoted(std::string_view given) {
  const std::string text = Printable(given);
  if (!text.empty() && text.find_first_of(" \"=\n\t") == std::string_view::npos) {
    return text;
  }
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string UtcNow() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[40];
  const size_t n = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(text + n, sizeof text - n, ".%03dZ", static_cast<int>(ms));
  return text;
}

}  // namespace

void ConfigureLog(LogLevel lowest, LogFormat format) {
  TheLogger().out->set_level(kLevels[static_cast<int>(lowest)]);
  TheLogger().format = format;
}

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  Logger& logger = TheLogger();
  const auto spd_level = kLevels[static_cast<int>(level)];
  if (!logger.out->should_log(spd_level)) return;
  std::string line;
  if (logger.format == LogFormat::kJson) {
    nlohmann::ordered_json json{
        {"time", UtcNow()}, {"level", kNames[static_cast<int>(level)]}, {"message", message}};
    for (const auto& [key, value] : fields) json[std::string(key)] = value;
    line = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  } else {
    line = "time=" + UtcNow() + " level=" + std::string(kNames[static_cast<int>(level)]) +
           " msg=" + Quoted(message);
    for (const auto& [key, value] : fields) line += " " + std::string(key) + "=" + Quoted(value);
  }
  logger.out->log(spd_level, spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace meshtrain
