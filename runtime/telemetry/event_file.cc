#include "runtime/telemetry/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <chrono>

#include "runtime/base/file.h"
#include "runtime/telemetry/crc32c.h"

namespace meshtrain::telemetry {
namespace {

constexpr size_t kMaxBuffer = 1 << 16;

// --- protobuf's wire format: a field's key is its number and a wire type ---
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void PutVarint(std::string& out, uint64_t v) {
  for (; v >= 128; v >>= 7) out.push_back(static_cast<char>(v | 128));
  out.push_back(static_cast<char>(v));
}
void PutKey(std::string& out, uint32_t field, WireType type) { PutVarint(out, field << 3 | type); }

template <typename T>
void PutLittleEndian(std::string& out, T v) {
  for (size_t i = 0; i < sizeof v; ++i) out.push_back(static_cast<char>(v >> (8 * i) & 255));
}

void PutBytes(std::string& out, uint32_t field, std::string_view bytes) {
  PutKey(out, field, kBytes);
  PutVarint(out, bytes.size());
  out += bytes;
}

// message Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary =
// 5; }
std::string EventHead(double wall_time, int64_t step) {
  std::string event;
  PutKey(event, 1, kFixed64);
  PutLittleEndian(event, std::bit_cast<uint64_t>(wall_time));
  if (step != 0) {
    PutKey(event, 2, kVarint);
    PutVarint(event, static_cast<uint64_t>(step));
  }
  return event;
}

std::string Record(const std::string& data) {
  std::string length;
  PutLittleEndian(length, static_cast<uint64_t>(data.size()));
  std::string record = length;
  PutLittleEndian(record, MaskedCrc32c(length));
  record += data;
  PutLittleEndian(record, MaskedCrc32c(data));
  return record;
}

double Seconds(TimePoint t) { return std::chrono::duration<double>(t.time_since_epoch()).count(); }

}  // namespace

std::string FirstRecord(double wall_time) {
  std::string event = EventHead(wall_time, 0);
  PutBytes(event, 3, "brain.Event:2");
  return Record(event);
}

std::string EventRecord(double wall_time, int64_t step, std::span<const NamedValue> scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    // message Summary { message Value { string tag = 1; float simple_value = 2; } repeated Value
    // value = 1; }
    std::string one;
    PutBytes(one, 1, tag);
    PutKey(one, 2, kFixed32);
    PutLittleEndian(one, std::bit_cast<uint32_t>(static_cast<float>(value)));
    PutBytes(summary, 1, one);
  }
  std::string event = EventHead(wall_time, step);
  PutBytes(event, 5, summary);
  return Record(event);
}

Result<std::unique_ptr<EventFileWriter>> EventFileWriter::Create(const std::string& folder,
                                                                 Clock& clock) {
  MT_RETURN_IF_ERROR(MakeDirectories(folder));
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  const double now = Seconds(clock.Now());
  const std::string base = folder + "/events.out.tfevents." +
                           std::to_string(static_cast<int64_t>(now)) + "." + host + "." +
                           std::to_string(::getpid()) + ".";
  // TensorBoard reads files in the order of their names; a second file within the second gets the
  // next number.
  for (int n = 0;; ++n) {
    const std::string path = base + std::to_string(n);
    Result<FileDescriptor> file = OpenFile(path, O_WRONLY | O_CREAT | O_EXCL);
    if (file.status().code() == StatusCode::kAlreadyExists && n < 1000) continue;
    if (!file.ok()) return file.status();
    std::unique_ptr<EventFileWriter> writer(new EventFileWriter(path, std::move(*file), clock));
    writer->buffer_ = FirstRecord(now);
    MT_RETURN_IF_ERROR(writer->Flush());
    return writer;
  }
}

EventFileWriter::~EventFileWriter() {
  if (file_.get() >= 0) (void)Flush();
}

Status EventFileWriter::Add(int64_t step, std::span<const NamedValue> scalars) {
  if (file_.get() < 0)
    return FailedPrecondition(path_ + ": expected Add() before Close(), got: it after");
  buffer_ += EventRecord(Seconds(clock_.Now()), step, scalars);
  if (buffer_.size() < kMaxBuffer && clock_.Monotonic() - flushed_ < std::chrono::seconds(1)) {
    return OkStatus();
  }
  return Flush();
}

Status EventFileWriter::Flush() {
  flushed_ = clock_.Monotonic();
  std::string_view rest = buffer_;
  while (!rest.empty()) {
    const ssize_t n = ::write(file_.get(), rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      buffer_.erase(0, buffer_.size() - rest.size());  // never write a byte twice
      return ErrnoStatus(error, "cannot write", path_);
    }
    rest.remove_prefix(static_cast<size_t>(n));
  }
  buffer_.clear();
  return OkStatus();
}

Status EventFileWriter::Close() {
  if (file_.get() < 0) return OkStatus();
  const Status flushed = Flush();
  if (file_.Close() != 0 && flushed.ok()) return ErrnoStatus(errno, "cannot close", path_);
  return flushed;
}

}  // namespace meshtrain::telemetry
