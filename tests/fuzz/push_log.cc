// The push log: an input as it stands, and behind records that are sound. Those come back as they
// were written, whatever stands behind them.
#include "runtime/parameter/server/push_log.h"

#include <vector>

#include "tests/fuzz/fuzz.h"

using namespace meshtrain;

namespace {

parameter::Bytes BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input = fuzz::TextOf(data, size);
  const auto scanned = parameter::ScanLog(BytesOf(input), "push.log");
  if (!scanned.ok()) fuzz::CheckMessage(scanned.status());
  if (scanned.ok()) FUZZ_CHECK(scanned->end <= static_cast<int64_t>(size));

  // A byte says how long the next record's head is, another its payload.
  std::string log;
  std::vector<std::pair<std::string_view, std::string_view>> written;
  std::string_view rest = input;
  for (int i = 0; i < 4 && rest.size() >= 2; ++i) {
    const auto head_bytes = static_cast<uint8_t>(rest[0]),
               payload_bytes = static_cast<uint8_t>(rest[1]);
    rest.remove_prefix(2);
    const std::string_view head = rest.substr(0, head_bytes);
    rest.remove_prefix(head.size());
    const std::string_view payload = rest.substr(0, payload_bytes);
    rest.remove_prefix(payload.size());
    const std::vector<parameter::Bytes> pieces = {BytesOf(payload)};
    log += parameter::EncodeRecord(head, pieces, static_cast<int64_t>(log.size()));
    written.emplace_back(head, payload);
  }
  log += rest;
  const auto found = parameter::ScanLog(BytesOf(log), "push.log");
  if (!found.ok()) return 0;  // the rest is a record that says more had been synced
  FUZZ_CHECK(found->records.size() >= written.size());
  for (size_t i = 0; i < written.size(); ++i) {
    const parameter::Record& record = found->records[i];
    FUZZ_CHECK(record.head == written[i].first);
    FUZZ_CHECK(record.payload.size() == written[i].second.size());
    FUZZ_CHECK(std::equal(record.payload.begin(), record.payload.end(),
                          BytesOf(written[i].second).begin()));
  }
  return 0;
}
