#include "runtime/parameter/server/push_log.h"

#include <optional>

#include "runtime/wire/bytes.h"
#include "runtime/wire/checksum.h"
#include "runtime/wire/front.h"

namespace meshtrain::parameter {
namespace {

constexpr uint32_t kMagic = 0x3150544d;  // "MTP1"
constexpr size_t kSyncedAt = wire::kFrontBytes, kSumAt = 24;

struct Found {
  Record record;
  int64_t synced = 0;
};

// The record at `at`, if a whole and sound one stands there.
std::optional<Found> RecordAt(Bytes bytes, size_t at) {
  if (bytes.size() - at < kRecordHeadBytes) return {};
  const std::byte* const begin = bytes.data() + at;
  const auto front = wire::GetFront(kMagic, begin);
  if (!front) return {};
  const uint64_t head = front->head_bytes, payload = front->payload_bytes;
  const uint64_t left = bytes.size() - at - kRecordHeadBytes;
  if (head > wire::kMaxHeadBytes || head > left || payload > left - head) return {};
  const size_t padding = RecordPadding(head, payload);
  if (padding > left - head - payload) return {};
  wire::RunningChecksum sum;
  sum.Add(begin, kSumAt);
  sum.Add(begin + kRecordHeadBytes, head + payload);
  if (sum.value() != wire::Get<uint64_t>(begin + kSumAt)) return {};
  const std::byte* const body = begin + kRecordHeadBytes;
  return Found{{.head = {reinterpret_cast<const char*>(body), head},
                .payload = {body + head, payload},
                .end = static_cast<int64_t>(at + kRecordHeadBytes + head + payload + padding)},
               static_cast<int64_t>(wire::Get<uint64_t>(begin + kSyncedAt))};
}

}  // namespace

size_t RecordPadding(size_t head_bytes, size_t payload_bytes) {
  return (8 - (head_bytes + payload_bytes) % 8) % 8;
}

std::array<std::byte, kRecordHeadBytes> RecordHead(std::string_view head,
                                                   std::span<const Bytes> payload, int64_t synced) {
  uint64_t bytes = 0;
  for (const Bytes& piece : payload) bytes += piece.size();
  std::array<std::byte, kRecordHeadBytes> out;
  wire::PutFront(kMagic, {.head_bytes = head.size(), .payload_bytes = bytes}, out.data());
  wire::Put(static_cast<uint64_t>(synced), out.data() + kSyncedAt);
  wire::RunningChecksum sum;
  sum.Add(out.data(), kSumAt);
  sum.Add(head.data(), head.size());
  for (const Bytes& piece : payload) sum.Add(piece.data(), piece.size());
  wire::Put(sum.value(), out.data() + kSumAt);
  return out;
}

std::string EncodeRecord(std::string_view head, std::span<const Bytes> payload, int64_t synced) {
  const auto front = RecordHead(head, payload, synced);
  std::string out(reinterpret_cast<const char*>(front.data()), front.size());
  out += head;
  size_t bytes = 0;
  for (const Bytes& piece : payload) {
    out.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    bytes += piece.size();
  }
  out.append(RecordPadding(head.size(), bytes), '\0');
  return out;
}

Result<ScannedLog> ScanLog(Bytes bytes, const std::string& path) {
  ScannedLog out;
  size_t at = 0;
  while (at < bytes.size()) {
    const auto found = RecordAt(bytes, at);
    if (!found) break;
    out.records.push_back(found->record);
    at = static_cast<size_t>(found->record.end);
  }
  out.end = static_cast<int64_t>(at);
  out.torn = at < bytes.size();
  // Records begin at multiples of 8. Whatever sound one stands behind the bad one knows whether
  // that had been durable.
  for (size_t next = at + 8; next < bytes.size(); next += 8) {
    const auto found = RecordAt(bytes, next);
    if (found && found->synced > out.end) {
      return DataLoss(path + ": byte " + std::to_string(at) +
                      ": expected a record, which was on the disk when the one " + "at byte " +
                      std::to_string(next) + " was written, got: something else");
    }
  }
  return out;
}

}  // namespace meshtrain::parameter
