// TensorBoard's event files: TFRecords of tensorflow.Event messages, here with scalars.
// Formats: tensorflow/core/lib/io/record_writer.h (length, masked CRC-32C of it, data, masked
// CRC-32C of it, little- endian), tensorflow/core/util/event.proto and framework/summary.proto;
// protobuf's wire format.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/file.h"
#include "runtime/base/status.h"

namespace meshtrain::telemetry {

using NamedValue = std::pair<std::string, double>;  // "loss", 0.5

// The bytes of one record. Pure.
std::string EventRecord(double wall_time, int64_t step, std::span<const NamedValue> scalars);
std::string FirstRecord(double wall_time);  // the file version

// Not thread-safe. Errors: base/file.h's, naming the file.
class EventFileWriter {
 public:
  // Makes FOLDER/events.out.tfevents.SECONDS.HOST.PID.N; FOLDER is a run's: TensorBoard shows
  // runs/train and runs/test as two curves in one chart.
  static Result<std::unique_ptr<EventFileWriter>> Create(const std::string& folder,
                                                         Clock& clock = SystemClock());
  // Writes what is buffered.
  ~EventFileWriter();
  EventFileWriter(const EventFileWriter&) = delete;
  EventFileWriter& operator=(const EventFileWriter&) = delete;

  const std::string& path() const { return path_; }
  // Buffered for up to a second. An error of an earlier write comes back here.
  Status Add(int64_t step, std::span<const NamedValue> scalars);
  Status Flush();
  Status Close();

 private:
  EventFileWriter(std::string path, FileDescriptor file, Clock& clock)
      : path_(std::move(path)), file_(std::move(file)), clock_(clock) {}
  std::string path_;
  FileDescriptor file_;
  Clock& clock_;
  std::string buffer_;
  Duration flushed_{0};
};

}  // namespace meshtrain::telemetry
