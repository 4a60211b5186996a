#include "runtime/telemetry/metrics_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/base/log.h"
#include "runtime/base/text.h"

namespace meshtrain::telemetry {
namespace {

void PutNumber(std::string& out, double v) {
  if (std::isfinite(v)) {
    fmt::format_to(std::back_inserter(out), "{}", v);
  } else {
    out += "null";
  }
}

std::string Quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void PutFigures(std::string& out, std::string_view before, std::span<const NamedValue> figures) {
  for (const auto& [name, value] : figures) {
    out += "," + Quoted(std::string(before) + name) + ":";
    PutNumber(out, value);
  }
}

constexpr int64_t kBlock = 64 << 10;
// No line of ours is longer; what is, is not read.
constexpr int64_t kLongestLine = 1 << 20;

// Looks for line ends from a file's end to its beginning, with one block of it in memory.
class LineEnds {
 public:
  LineEnds(const FileDescriptor& file, const std::string& path) : file_(file), path_(path) {}

  // The byte behind the last line end before `end`; 0 where there is none.
  Result<int64_t> Before(int64_t end) {
    while (end > 0) {
      const auto held = static_cast<int64_t>(block_.size());
      if (end <= begin_ || end > begin_ + held) {
        begin_ = std::max<int64_t>(0, end - kBlock);
        MT_ASSIGN_OR_RETURN(block_, Read(begin_, end));
      }
      const size_t at = block_.rfind('\n', static_cast<size_t>(end - begin_ - 1));
      if (at != std::string::npos) return begin_ + static_cast<int64_t>(at) + 1;
      end = begin_;
    }
    return 0;
  }

  Result<std::string> Read(int64_t begin, int64_t end) const {
    std::string bytes(static_cast<size_t>(end - begin), '\0');
    MT_ASSIGN_OR_RETURN(const size_t n,
                        ReadAt(file_, begin, std::as_writable_bytes(std::span(bytes)), path_));
    if (n < bytes.size())
      return Unavailable(path_ + ": somebody else cuts it off while it is read");
    return bytes;
  }

 private:
  const FileDescriptor& file_;
  const std::string& path_;
  int64_t begin_ = 0;  // of block_, in the file
  std::string block_;
};

struct Line {
  int64_t step = 0;
  bool of_step = false;  // else of a validation
};

// nullopt for a line that is none of ours.
std::optional<Line> LineOf(const std::string& text) {
  const auto line = nlohmann::json::parse(text, nullptr, false);
  if (!line.is_object()) return std::nullopt;
  const auto step = line.find("step");
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  if (step == line.end() || !step->is_number_unsigned() || step->get<uint64_t>() > kMost) {
    return std::nullopt;
  }
  return Line{.step = step->get<int64_t>(), .of_step = line.contains("loss")};
}

struct Kept {
  int64_t end = 0;  // of the last line that is kept, in bytes
  std::optional<int64_t> step;
};

// The last line that stays.
Result<Kept> LastOf(const FileDescriptor& file, const std::string& path, int64_t size,
                    const MetricsLog::Behind& behind) {
  LineEnds ends(file, path);
  MT_ASSIGN_OR_RETURN(int64_t end, ends.Before(size));
  while (end > 0) {
    MT_ASSIGN_OR_RETURN(const int64_t begin, ends.Before(end - 1));
    if (end - begin <= kLongestLine) {
      MT_ASSIGN_OR_RETURN(const std::string line, ends.Read(begin, end));
      const std::optional<Line> found = LineOf(line);
      const int64_t last =
          found && !found->of_step && !behind.validated ? behind.step - 1 : behind.step;
      if (found && found->step <= last) return Kept{end, found->step};
    }
    end = begin;
  }
  return Kept{};
}

}  // namespace

std::string StepLine(const StepRecord& r) {
  std::string line = fmt::format("{{\"step\":{},\"epoch\":{},\"loss\":", r.step, r.epoch);
  PutNumber(line, r.loss);
  PutFigures(line, "", r.metrics);
  if (r.seconds) {
    line += ",\"seconds\":";
    PutNumber(line, *r.seconds);
  }
  if (!r.bad.empty()) line += ",\"bad\":" + Quoted(r.bad);
  return line + "}\n";
}

std::string ValidationLine(const ValidationRecord& r) {
  std::string line = fmt::format("{{\"step\":{},\"epoch\":{}", r.step, r.epoch);
  PutFigures(line, "val_", r.figures);
  return line + "}\n";
}

Result<std::unique_ptr<MetricsLog>> MetricsLog::Open(const std::string& path,
                                                     std::optional<Behind> behind, Clock& clock) {
  MT_ASSIGN_OR_RETURN(FileDescriptor file,
                      OpenFile(path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW));
  Kept kept;
  if (behind) {
    struct stat info {};
    if (::fstat(file.get(), &info) != 0) return ErrnoStatus(errno, "cannot stat", path);
    MT_ASSIGN_OR_RETURN(kept, LastOf(file, path, info.st_size, *behind));
  }
  if (::ftruncate(file.get(), kept.end) != 0) return ErrnoStatus(errno, "cannot cut off", path);
  return std::unique_ptr<MetricsLog>(
      new MetricsLog(path, std::move(file), kept.end, kept.step, clock));
}

// Writing goes on into a file that was removed, without an error, and a folder that is gone is made
// again by the next checkpoint: nothing else would say that the lines are lost.
Status MetricsLog::CheckStillThere() const {
  struct stat ours {
  }, there{};
  if (::fstat(file_.get(), &ours) != 0) return ErrnoStatus(errno, "cannot stat", path_);
  if (::stat(path_.c_str(), &there) == 0) {
    if (there.st_ino == ours.st_ino && there.st_dev == ours.st_dev) return OkStatus();
  } else if (errno != ENOENT && errno != ENOTDIR) {
    return ErrnoStatus(errno, "cannot stat", path_);
  }
  std::string folder = std::filesystem::path(path_).parent_path().string();
  if (folder.empty()) folder = ".";
  return NotFound(Printable(folder) + ": expected the output folder to stay while the run writes " +
                  "into it, got: metrics.jsonl and perhaps all of it removed or moved");
}

// A process that was cut off from its job may come back after another took its place and its file:
// what it says then belongs to no run.
bool MetricsLog::WasTakenOver() {
  struct stat info {};
  if (taken_over_ || ::fstat(file_.get(), &info) != 0 || info.st_size == size_) return taken_over_;
  LogWarning("another process writes the metrics; those of this one are left out",
             {{"file", path_}});
  return taken_over_ = true;
}

Status MetricsLog::AddLine(const std::string& line) {
  if (WasTakenOver()) return OkStatus();
  for (std::string_view rest = line; !rest.empty();) {
    const ssize_t n = ::write(file_.get(), rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "cannot write", path_);
    size_ += n;
    rest.remove_prefix(static_cast<size_t>(n));
  }
  const Duration now = clock_.Monotonic();
  if (now - looked_ < std::chrono::seconds(1)) return OkStatus();
  looked_ = now;
  return CheckStillThere();
}

Status MetricsLog::Close() {
  if (file_.get() < 0) return OkStatus();
  const Status there = CheckStillThere();
  if (file_.Close() != 0 && there.ok()) return ErrnoStatus(errno, "cannot close", path_);
  return there;
}

Status ReadSteps(const std::string& path, const AddStep& add) {
  MT_ASSIGN_OR_RETURN(const FileDescriptor file, OpenFile(path, O_RDONLY));
  std::vector<NamedValue> figures;
  const auto take = [&](std::string_view text) {
    if (text.size() > static_cast<size_t>(kLongestLine)) return;
    const auto line = nlohmann::ordered_json::parse(text, nullptr, false);
    if (!line.is_object() || !line.contains("loss") || line.contains("bad")) return;
    const auto step = line.find("step");
    if (step == line.end() || !step->is_number_integer()) return;
    figures.clear();
    for (const auto& [name, value] : line.items()) {
      if (name == "step" || name == "epoch" || name == "seconds") continue;
      if (!value.is_number() && !value.is_null()) continue;
      figures.emplace_back(
          name, value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>());
    }
    const auto seconds = line.find("seconds");
    const bool timed = seconds != line.end() && seconds->is_number();
    add(step->get<int64_t>(), figures,
        timed ? std::optional(seconds->get<double>()) : std::nullopt);
  };
  std::string block(size_t{1} << 16, '\0');
  std::string line;  // so far; of one that is too long only so much that this shows
  while (true) {
    const ssize_t n = ::read(file.get(), block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "cannot read", path);
    if (n == 0) return OkStatus();  // what has no end yet is no line
    std::string_view rest(block.data(), static_cast<size_t>(n));
    while (!rest.empty()) {
      const size_t end = rest.find('\n');
      const std::string_view piece = rest.substr(0, end);
      if (line.size() <= static_cast<size_t>(kLongestLine)) line += piece;
      if (end == std::string_view::npos) break;
      take(line);
      line.clear();
      rest.remove_prefix(end + 1);
    }
  }
}

}  // namespace meshtrain::telemetry
