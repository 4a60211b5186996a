// Frames as messages of a gRPC stream: cut on their way out, put together on their way in, with
// checksums of all that they carry. A frame's first message begins with its front:
//   magic (4 bytes), bytes of head (4), bytes of payload (8), checksum of these (8), head, seal
// The payload follows, and its checksum. Private to runtime/parameter/messages.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/parameter/messages/transfer.h"
#include "runtime/rpc/grpc_internal.h"
#include "runtime/wire/checksum.h"

namespace grpc {
class ByteBuffer;
}

namespace meshtrain::parameter {

inline constexpr int64_t kMaxMessageBytes = int64_t{1} << 30;

// A trailing header of an error: the request was damaged on the way, and nobody has read it.
inline constexpr const char* kDamagedKey = "meshtrain-damaged";

// Cuts a frame into messages.
class FrameSender {
 public:
  explicit FrameSender(Frame frame);

  // The next message. `mac`: of the call; the first message alone needs it.
  grpc::ByteBuffer Next(rpc::CallMac& mac);
  bool done() const { return !first_ && left_ == 0; }
  // To be sent again. No message may be under way.
  Frame TakeFrame() { return std::move(frame_); }

 private:
  Frame frame_;
  bool first_ = true;
  size_t left_ = 0;  // payload bytes
  size_t piece_ = 0;
  size_t at_ = 0;                             // in it
  std::optional<wire::RunningChecksum> sum_;  // of the payload that was cut
};

// Puts a frame together, straight into where its payload goes. It asks for the place only when the
// head is known to be whole.
class FrameReader {
 public:
  explicit FrameReader(Land land) : land_(std::move(land)) {}

  // `mac`: of the call.
  Status Take(const grpc::ByteBuffer& message, rpc::CallMac& mac);
  bool complete() const;
  // An error of Take means that the bytes are not those that were sent.
  bool damaged() const { return damaged_; }
  std::string TakeHead() { return std::move(head_); }
  Land TakeLand() { return std::move(land_); }

 private:
  Status Damaged(const std::string& expected, const std::string& got);
  Status CheckSum(const uint8_t* sent, uint64_t ours, const std::string& of);

  // Reads the front once it is here, then the head once that is, and asks where the payload goes.
  Status MaybeBegin(rpc::CallMac& mac);

  Land land_;
  std::string front_;
  std::string head_;
  bool sized_ = false;
  bool landed_ = false;  // the head is read, `parts_` are known
  uint64_t head_bytes_ = 0;
  uint64_t payload_bytes_ = 0;
  std::vector<std::span<std::byte>> parts_;  // what is left of each
  size_t part_ = 0;
  std::optional<wire::RunningChecksum> sum_;  // of the payload until here; none: no payload
  std::string tail_;                          // the payload's checksum as it was sent
  bool damaged_ = false;
};

}  // namespace meshtrain::parameter
