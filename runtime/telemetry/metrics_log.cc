#include "runtime/telemetry/metrics_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "runtime/base/file.h"

namespace meshtrain::telemetry {
namespace {

void PutNumber(std::string& out, double v) {
  if (std::isfinite(v)) {
    fmt::format_to(std::back_inserter(out), "{}", v);
  } else {
    out += "null";
  }
}

// The lines of `text` whose step is at most `last`; a half-written last line goes.
std::string LinesUpTo(const std::string& text, int64_t last) {
  std::string kept;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const auto line =
        nlohmann::json::parse(text.begin() + static_cast<std::ptrdiff_t>(begin),
                              text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    if (line.is_object() && line.contains("step") && line["step"].is_number_integer() &&
        line["step"].get<int64_t>() <= last) {
      kept += text.substr(begin, end + 1 - begin);
    }
    begin = end + 1;
  }
  return kept;
}

}  // namespace

std::string StepLine(const StepRecord& r) {
  std::string line = fmt::format("{{\"step\":{},\"epoch\":{},\"loss\":", r.step, r.epoch);
  PutNumber(line, r.loss);
  const auto quoted = [](std::string_view text) {
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  for (const auto& [name, value] : r.metrics) {
    line += "," + quoted(name) + ":";
    PutNumber(line, value);
  }
  if (r.seconds) {
    line += ",\"seconds\":";
    PutNumber(line, *r.seconds);
  }
  if (!r.bad.empty()) line += ",\"bad\":" + quoted(r.bad);
  return line + "}\n";
}

Result<std::unique_ptr<MetricsLog>> MetricsLog::Open(const std::string& path,
                                                     std::optional<int64_t> resume_after) {
  if (resume_after) {
    Result<std::string> old = ReadFile(path);
    if (old.ok()) MT_RETURN_IF_ERROR(WriteFileAtomically(path, LinesUpTo(*old, *resume_after)));
  }
  const int fd = ::open(
      path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (resume_after ? 0 : O_TRUNC), 0644);
  if (fd < 0) return ErrnoStatus(errno, "cannot create", path);
  return std::unique_ptr<MetricsLog>(new MetricsLog(path, fd));
}

MetricsLog::~MetricsLog() {
  if (fd_ >= 0) ::close(fd_);
}

Status MetricsLog::Add(const StepRecord& record) {
  const std::string line = StepLine(record);
  for (std::string_view rest = line; !rest.empty();) {
    const ssize_t n = ::write(fd_, rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "cannot write", path_);
    rest.remove_prefix(static_cast<size_t>(n));
  }
  return OkStatus();
}

Status MetricsLog::Close() {
  if (fd_ < 0) return OkStatus();
  const int fd = std::exchange(fd_, -1);
  return ::close(fd) == 0 ? OkStatus() : ErrnoStatus(errno, "cannot close", path_);
}

}  // namespace meshtrain::telemetry
