#include "runtime/collective/link/control.h"

#include "runtime/wire/bytes.h"

namespace meshtrain::collective {
namespace {

constexpr uint32_t kMagic = 0x4343544d;  // "MTCC"

template <typename T>
void Append(std::string& out, T value) {
  char bytes[sizeof value];
  wire::Put(value, bytes);
  out.append(bytes, sizeof value);
}
template <typename T>
T Get(const std::string& bytes, size_t at) {
  return wire::Get<T>(bytes.data() + at);
}

}  // namespace

std::string EncodeControl(const ControlMessage& m) {
  const std::string_view text = std::string_view(m.text).substr(0, kControlMaxText);
  const std::string_view asked = std::string_view(m.asked).substr(0, kControlMaxText);
  std::string out;
  Append(out, kMagic);
  Append(out, static_cast<uint8_t>(m.kind));
  Append(out, static_cast<uint8_t>(m.inside));
  Append(out, static_cast<uint16_t>(m.code));
  Append(out, m.sequence);
  Append(out, m.collective);
  Append(out, m.plan_hash);
  Append(out, m.call);
  Append(out, static_cast<uint32_t>(text.size()));
  Append(out, static_cast<uint32_t>(asked.size()));
  out.append(text);
  out.append(asked);
  return out;
}

Result<bool> TakeControl(std::string& bytes, ControlMessage& out) {
  if (bytes.size() < kControlHeaderBytes) return false;
  const uint8_t kind = Get<uint8_t>(bytes, 4);
  const uint16_t code = Get<uint16_t>(bytes, 6);
  const uint32_t text = Get<uint32_t>(bytes, 40), asked = Get<uint32_t>(bytes, 44);
  if (Get<uint32_t>(bytes, 0) != kMagic || kind < 1 || kind > 4 ||
      code > static_cast<uint16_t>(StatusCode::kUnauthenticated) || text > kControlMaxText ||
      asked > kControlMaxText) {
    return FailedPrecondition("expected a message between fabrics, got: other bytes");
  }
  if (bytes.size() < kControlHeaderBytes + text + asked) return false;
  out.kind = static_cast<ControlKind>(kind);
  out.inside = Get<uint8_t>(bytes, 5) != 0;
  out.code = static_cast<StatusCode>(code);
  out.sequence = Get<uint64_t>(bytes, 8);
  out.collective = Get<uint64_t>(bytes, 16);
  out.plan_hash = Get<uint64_t>(bytes, 24);
  out.call = Get<uint64_t>(bytes, 32);
  out.text = bytes.substr(kControlHeaderBytes, text);
  out.asked = bytes.substr(kControlHeaderBytes + text, asked);
  bytes.erase(0, kControlHeaderBytes + text + asked);
  return true;
}

}  // namespace meshtrain::collective
