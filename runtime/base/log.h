// The only way a library speaks. Lines go to stderr as key=value or JSON; `fields` hold what a
// reader filters by (job, attempt, rank, step). Thread-safe.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace meshtrain {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kKeyValue, kJson };

using LogField = std::pair<std::string_view, std::string>;

// Call once, from main, before threads start. Default: kInfo, kKeyValue.
void ConfigureLog(LogLevel lowest, LogFormat format);

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});

inline void LogInfo(std::string_view m, std::initializer_list<LogField> f = {}) {
  Log(LogLevel::kInfo, m, f);
}
inline void LogWarning(std::string_view m, std::initializer_list<LogField> f = {}) {
  Log(LogLevel::kWarning, m, f);
}
inline void LogError(std::string_view m, std::initializer_list<LogField> f = {}) {
  Log(LogLevel::kError, m, f);
}

}  // namespace meshtrain
