#include "runtime/parameter/server/push_log.h"

#include <xxhash.h>

#include <cstring>
#include <optional>

#include "runtime/base/check.h"

namespace meshtrain::parameter {
namespace {

constexpr uint32_t kMagic = 0x3150544d;  // "MTP1"
constexpr size_t kHashAt = 24;
constexpr uint64_t kMaxHeadBytes = uint64_t{1} << 30;

template <typename T>
void Put(T value, std::byte* to) {
  for (size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}

template <typename T>
T Get(const std::byte* from) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(from[i]) << (8 * i);
  return value;
}

class Hash {
 public:
  Hash() : state_(XXH3_createState()) {
    MT_CHECK(state_ != nullptr);
    XXH3_64bits_reset(state_);
  }
  ~Hash() { XXH3_freeState(state_); }
  Hash(const Hash&) = delete;
  Hash& operator=(const Hash&) = delete;
  void Add(const void* bytes, size_t size) { XXH3_64bits_update(state_, bytes, size); }
  uint64_t value() const { return XXH3_64bits_digest(state_); }

 private:
  XXH3_state_t* state_;
};

struct Found {
  Record record;
  int64_t synced = 0;
};

// The record at `at`, if a whole and sound one stands there.
std::optional<Found> RecordAt(Bytes bytes, size_t at) {
  if (bytes.size() - at < kRecordHeadBytes) return {};
  const std::byte* const begin = bytes.data() + at;
  if (Get<uint32_t>(begin) != kMagic) return {};
  const uint64_t head = Get<uint32_t>(begin + 4);
  const uint64_t payload = Get<uint64_t>(begin + 8);
  const uint64_t left = bytes.size() - at - kRecordHeadBytes;
  if (head > kMaxHeadBytes || head > left || payload > left - head) return {};
  const size_t padding = RecordPadding(head, payload);
  if (padding > left - head - payload) return {};
  Hash hash;
  hash.Add(begin, kHashAt);
  hash.Add(begin + kRecordHeadBytes, head + payload);
  if (hash.value() != Get<uint64_t>(begin + kHashAt)) return {};
  const std::byte* const body = begin + kRecordHeadBytes;
  return Found{{.head = {reinterpret_cast<const char*>(body), head},
                .payload = {body + head, payload},
                .end = static_cast<int64_t>(at + kRecordHeadBytes + head + payload + padding)},
               static_cast<int64_t>(Get<uint64_t>(begin + 16))};
}

}  // namespace

size_t RecordPadding(size_t head_bytes, size_t payload_bytes) {
  return (8 - (head_bytes + payload_bytes) % 8) % 8;
}

std::array<std::byte, kRecordHeadBytes> RecordHead(std::string_view head,
                                                   std::span<const Bytes> payload, int64_t synced) {
  MT_CHECK(head.size() <= kMaxHeadBytes);
  uint64_t bytes = 0;
  for (const Bytes& piece : payload) bytes += piece.size();
  std::array<std::byte, kRecordHeadBytes> out;
  Put(kMagic, out.data());
  Put(static_cast<uint32_t>(head.size()), out.data() + 4);
  Put(bytes, out.data() + 8);
  Put(static_cast<uint64_t>(synced), out.data() + 16);
  Hash hash;
  hash.Add(out.data(), kHashAt);
  hash.Add(head.data(), head.size());
  for (const Bytes& piece : payload) hash.Add(piece.data(), piece.size());
  Put(hash.value(), out.data() + kHashAt);
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
