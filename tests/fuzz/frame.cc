// What comes in on a link between two processes: frames' headers, and the first words of a
// connection. Whatever fields a header has, it comes back as it was sent.
#include "runtime/collective/link/frame.h"

#include <cstring>

#include "runtime/collective/link/hello.h"
#include "tests/fuzz/fuzz.h"

using namespace meshtrain;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  collective::FrameBytes frame{};
  std::memcpy(frame.data(), data, std::min(size, frame.size()));
  const auto decoded = collective::DecodeFrame(frame);
  if (!decoded.ok()) fuzz::CheckMessage(decoded.status());

  collective::FrameHeader header;
  const auto take = [&](auto* field) {
    const size_t n = std::min(size, sizeof *field);
    std::memcpy(field, data, n);
    data += n;
    size -= n;
  };
  take(&header.incarnation);
  take(&header.plan_hash);
  take(&header.collective);
  take(&header.call);
  take(&header.source);
  take(&header.round);
  take(&header.length);
  take(&header.checksum);
  EncodeFrame(header, frame);
  const auto again = collective::DecodeFrame(frame);
  FUZZ_CHECK(again.ok() && *again == header);
  const auto difference = Compare(header, {});
  const Status diverged = Diverged(difference, header, {}, "worker-1", {}, {});
  FUZZ_CHECK(diverged.ok() == (difference == collective::FrameDifference::kNone));

  collective::HelloBytes hello{};
  std::memcpy(hello.data(), data, std::min(size, hello.size()));
  if (const auto greeting = collective::DecodeHello(hello); !greeting.ok()) {
    fuzz::CheckMessage(greeting.status());
  }
  const std::string_view verdict = fuzz::TextOf(data, size);
  if (verdict.size() < collective::kVerdictHeaderBytes) return 0;
  const auto head =
      collective::DecodeVerdictHeader(verdict.substr(0, collective::kVerdictHeaderBytes));
  if (head.ok()) FUZZ_CHECK(head->length <= collective::kVerdictMaxText);
  return 0;
}
