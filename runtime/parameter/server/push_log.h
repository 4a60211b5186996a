// The push log's bytes: records, one after the other. Pure; log_file.h puts them on a disk.
//
// A record (little-endian, padded with zeros to 8 bytes):
//   u32 magic "MTP1" | u32 head bytes | u64 payload bytes | u64 synced |
//   u64 XXH3-64 of what stands before it and after |
//   head: a v1::LogRecord | payload: tensors' bytes
//
// `synced`: how many bytes of this file were on the disk when the record was written. That tells
// the two kinds of bad record apart. One at the end is a write that a crash cut off: nobody was
// told that it is there, and reading stops before it. One in front of a record that says it had
// been synced is damage: acknowledged pushes are gone (kDataLoss).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace meshtrain::parameter {

inline constexpr size_t kRecordHeadBytes = 32;

using Bytes = std::span<const std::byte>;

// What stands in front of `head` in its record. `payload`: pieces of the payload, in order.
std::array<std::byte, kRecordHeadBytes> RecordHead(std::string_view head,
                                                   std::span<const Bytes> payload, int64_t synced);
// Zeros after a record's payload; at most 7.
size_t RecordPadding(size_t head_bytes, size_t payload_bytes);
// A whole record.
std::string EncodeRecord(std::string_view head, std::span<const Bytes> payload, int64_t synced);

struct Record {
  std::string_view head;
  Bytes payload;
  int64_t end = 0;  // where the next one begins
};

struct ScannedLog {
  std::vector<Record> records;  // into the bytes that were given
  int64_t end = 0;              // of the last one
  bool torn = false;            // something that is no record stands behind it
};

// Errors: kDataLoss, as above, naming the byte. `path` is for messages.
Result<ScannedLog> ScanLog(Bytes bytes, const std::string& path);

}  // namespace meshtrain::parameter
