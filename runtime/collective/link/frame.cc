#include "runtime/collective/link/frame.h"

#include <vector>

#include "runtime/wire/bytes.h"
#include "runtime/wire/checksum.h"

namespace meshtrain::collective {
namespace {

constexpr uint32_t kMagic = 0x4643544d;  // "MTCF"
constexpr uint16_t kVersion = 1;

template <typename T>
void Put(FrameBytes& bytes, size_t at, T value) {
  wire::Put(value, bytes.data() + at);
}
template <typename T>
T Get(const FrameBytes& bytes, size_t at) {
  return wire::Get<T>(bytes.data() + at);
}

uint32_t HeaderCheck(const FrameBytes& bytes) {
  FrameBytes copy = bytes;
  Put<uint32_t>(copy, 52, 0);
  return static_cast<uint32_t>(wire::Checksum(copy.data(), copy.size()));
}

std::string Where(const Standing& standing) {
  return "collective " + std::to_string(standing.collective) +
         (standing.what.empty() ? std::string() : " (" + standing.what + ")");
}

}  // namespace

void EncodeFrame(const FrameHeader& h, FrameBytes& out) {
  Put(out, 0, kMagic);
  Put(out, 4, kVersion);
  Put<uint16_t>(out, 6, 0);
  Put(out, 8, h.incarnation);
  Put(out, 16, h.plan_hash);
  Put(out, 24, h.collective);
  Put(out, 32, h.call);
  Put(out, 40, h.source);
  Put(out, 44, h.round);
  Put(out, 48, h.length);
  Put(out, 56, h.checksum);
  Put(out, 52, HeaderCheck(out));
}

Result<FrameHeader> DecodeFrame(const FrameBytes& bytes) {
  if (Get<uint32_t>(bytes, 52) != HeaderCheck(bytes)) {
    return Unavailable("the frame's header was changed on its way: expected check " +
                       wire::HexText(HeaderCheck(bytes)) +
                       ", got: " + wire::HexText(Get<uint32_t>(bytes, 52)))
        .From(Origin::kPeers);
  }
  if (Get<uint32_t>(bytes, 0) != kMagic || Get<uint16_t>(bytes, 4) != kVersion) {
    return FailedPrecondition("expected a frame of version " + std::to_string(kVersion) +
                              ", got: version " + std::to_string(Get<uint16_t>(bytes, 4)));
  }
  FrameHeader h;
  h.incarnation = Get<uint64_t>(bytes, 8);
  h.plan_hash = Get<uint64_t>(bytes, 16);
  h.collective = Get<uint64_t>(bytes, 24);
  h.call = Get<uint64_t>(bytes, 32);
  h.source = Get<uint32_t>(bytes, 40);
  h.round = Get<uint32_t>(bytes, 44);
  h.length = Get<uint32_t>(bytes, 48);
  h.checksum = Get<uint64_t>(bytes, 56);
  return h;
}

FrameDifference Compare(const FrameHeader& got, const FrameHeader& want) {
  if (got.incarnation != want.incarnation) return FrameDifference::kIncarnation;
  if (got.source != want.source) return FrameDifference::kSource;
  if (got.plan_hash != want.plan_hash) return FrameDifference::kPlan;
  if (got.collective != want.collective) return FrameDifference::kCollective;
  if (got.call != want.call) return FrameDifference::kCall;
  if (got.round != want.round) return FrameDifference::kRound;
  if (got.length != want.length) return FrameDifference::kLength;
  return FrameDifference::kNone;
}

Status Diverged(FrameDifference difference, const FrameHeader& got, const FrameHeader& want,
                std::string_view peer_name, const Standing& theirs, const Standing& ours) {
  const std::string peer(peer_name);
  const auto pair = [&](const std::string& thing, const std::string& a, const std::string& b) {
    return thing + ": " + peer + " has " + a + ", we have " + b + ", at " + Where(ours);
  };
  switch (difference) {
    case FrameDifference::kNone:
      return OkStatus();
    case FrameDifference::kIncarnation:
      return Unavailable(pair("another incarnation", std::to_string(got.incarnation),
                              std::to_string(want.incarnation)))
          .From(Origin::kPeers);
    case FrameDifference::kSource:
      return FailedPrecondition(pair("another place in the group", std::to_string(got.source),
                                     std::to_string(want.source)));
    case FrameDifference::kPlan:
      return FailedPrecondition(
          pair("another plan", wire::HexText(got.plan_hash), wire::HexText(want.plan_hash)));
    case FrameDifference::kCollective:
    case FrameDifference::kCall:
      return FailedPrecondition("programs diverge: " + peer + " is at " + Where(theirs) +
                                ", we are at " + Where(ours));
    case FrameDifference::kRound:
      return FailedPrecondition(pair("another round of the algorithm", std::to_string(got.round),
                                     std::to_string(want.round)));
    case FrameDifference::kLength:
      return FailedPrecondition(
          pair("another length", std::to_string(got.length), std::to_string(want.length)));
  }
  return Internal("no such difference between frames");
}

uint64_t CallDigest(std::span<const int64_t> parts, std::string_view what) {
  const std::string_view name = what.substr(0, what.find(" at "));
  std::vector<int64_t> all(parts.begin(), parts.end());
  all.push_back(static_cast<int64_t>(wire::Checksum(name)));
  return wire::Checksum(all.data(), all.size() * sizeof(int64_t));
}

}  // namespace meshtrain::collective
