#include "runtime/parameter/messages/frame_stream.h"

#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/wire/bytes.h"
#include "runtime/wire/front.h"

namespace meshtrain::parameter {
namespace {

using rpc::CallMac;

constexpr uint32_t kMagic = 0x3346544d;  // "MTF3"
constexpr size_t kSizesBytes = wire::kFrontBytes;
constexpr size_t kSumBytes = 8;
constexpr size_t kFrontBytes = kSizesBytes + kSumBytes;
constexpr size_t kMacBytes = rpc::CallMac::kBytes;
constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr size_t kCopyBelow = 2048;  // a smaller piece is copied: cheaper than counting its owner

std::atomic<int64_t> damaged_frames = 0;

grpc::Slice SliceOf(const Piece& piece, size_t at, size_t size) {
  const std::byte* const bytes = piece.bytes.data() + at;
  if (size < kCopyBelow) return grpc::Slice(bytes, size);
  auto* const owner = new std::shared_ptr<const void>(piece.owner);
  return grpc::Slice(
      const_cast<std::byte*>(bytes), size,
      [](void* held) { delete static_cast<std::shared_ptr<const void>*>(held); }, owner);
}

}  // namespace

int64_t DamagedFrames() { return damaged_frames; }

FrameSender::FrameSender(Frame frame) : frame_(std::move(frame)) {
  for (const Piece& piece : frame_.payload) left_ += piece.bytes.size();
  if (left_ > 0) sum_.emplace();
}

grpc::ByteBuffer FrameSender::Next(CallMac& mac) {
  std::vector<grpc::Slice> slices;
  if (first_) {
    first_ = false;
    const size_t size = kFrontBytes + frame_.head.size();
    grpc::Slice front(size + kMacBytes);
    auto* const at = const_cast<uint8_t*>(front.begin());
    wire::PutFront(kMagic, {.head_bytes = frame_.head.size(), .payload_bytes = left_}, at);
    wire::Put(wire::Checksum(at, kSizesBytes), at + kSizesBytes);
    std::memcpy(at + kFrontBytes, frame_.head.data(), frame_.head.size());
    const std::string code =
        mac.Sign(std::string(reinterpret_cast<const char*>(at), kSizesBytes) + frame_.head);
    std::memcpy(at + size, code.data(), kMacBytes);
    slices.push_back(std::move(front));
  }
  for (size_t room = kChunkBytes; room > 0 && left_ > 0;) {
    const Piece& piece = frame_.payload[piece_];
    const size_t size = std::min(room, piece.bytes.size() - at_);
    if (size > 0) {
      sum_->Add(piece.bytes.data() + at_, size);
      slices.push_back(SliceOf(piece, at_, size));
    }
    at_ += size;
    room -= size;
    left_ -= size;
    if (at_ == piece.bytes.size()) {
      ++piece_;
      at_ = 0;
    }
    if (left_ == 0) {
      uint8_t sum[kSumBytes];
      wire::Put(sum_->value(), sum);
      slices.emplace_back(sum, kSumBytes);
    }
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

Status FrameReader::Take(const grpc::ByteBuffer& message, CallMac& mac) {
  std::vector<grpc::Slice> slices;
  if (!message.Dump(&slices).ok()) return Internal("frame: expected readable bytes, got: none");
  for (const grpc::Slice& slice : slices) {
    const uint8_t* at = slice.begin();
    const uint8_t* const end = slice.end();
    while (at != end) {
      const size_t left = static_cast<size_t>(end - at);
      if (!landed_) {
        const size_t wanted =
            (front_.size() < kFrontBytes ? kFrontBytes : kFrontBytes + head_bytes_ + kMacBytes) -
            front_.size();
        const size_t size = std::min(left, wanted);
        front_.append(reinterpret_cast<const char*>(at), size);
        at += size;
        MT_RETURN_IF_ERROR(MaybeBegin(mac));
      } else if (part_ == parts_.size()) {
        if (complete()) return Damaged("its end", "more bytes");
        const size_t size = std::min(left, kSumBytes - tail_.size());
        tail_.append(reinterpret_cast<const char*>(at), size);
        at += size;
        if (tail_.size() == kSumBytes) {
          MT_RETURN_IF_ERROR(
              CheckSum(reinterpret_cast<const uint8_t*>(tail_.data()), sum_->value(), "payload"));
        }
      } else {
        std::span<std::byte>& part = parts_[part_];
        const size_t size = std::min(left, part.size());
        std::memcpy(part.data(), at, size);
        sum_->Add(part.data(), size);
        part = part.subspan(size);
        at += size;
        while (part_ < parts_.size() && parts_[part_].empty()) ++part_;
      }
    }
  }
  return OkStatus();
}

bool FrameReader::complete() const {
  return landed_ && part_ == parts_.size() && (!sum_ || tail_.size() == kSumBytes);
}

Status FrameReader::Damaged(const std::string& expected, const std::string& got) {
  damaged_ = true;
  ++damaged_frames;
  return Unavailable("frame: expected " + expected + ", got: " + got + "; bytes changed on the way")
      .From(Origin::kPeers);
}

Status FrameReader::CheckSum(const uint8_t* sent, uint64_t ours, const std::string& of) {
  if (wire::Get<uint64_t>(sent) == ours) return OkStatus();
  return Damaged("the checksum " + wire::HexText(wire::Get<uint64_t>(sent)) + " of its " + of,
                 wire::HexText(ours));
}

Status FrameReader::MaybeBegin(CallMac& mac) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(front_.data());
  if (front_.size() == kFrontBytes && !sized_) {
    sized_ = true;
    const auto front = wire::GetFront(kMagic, bytes);
    if (!front) return Damaged("its magic number", "another");
    MT_RETURN_IF_ERROR(CheckSum(bytes + kSizesBytes, wire::Checksum(bytes, kSizesBytes), "sizes"));
    head_bytes_ = front->head_bytes;
    payload_bytes_ = front->payload_bytes;
    if (head_bytes_ > wire::kMaxHeadBytes) {
      return InvalidArgument("frame: expected a head of at most a gigabyte, got: " +
                             std::to_string(head_bytes_) + " bytes");
    }
  }
  if (!sized_ || front_.size() < kFrontBytes + head_bytes_ + kMacBytes) return OkStatus();
  head_ = front_.substr(kFrontBytes, head_bytes_);
  if (!mac.Check(front_.substr(0, kSizesBytes) + head_,
                 std::string_view(front_).substr(kFrontBytes + head_bytes_, kMacBytes))) {
    return Damaged("the seal of its head", "another");
  }
  front_.clear();
  if (land_) {
    MT_ASSIGN_OR_RETURN(parts_, land_(head_));
  }
  uint64_t bytes_wanted = 0;
  for (const auto& part : parts_) bytes_wanted += part.size();
  if (bytes_wanted != payload_bytes_) {
    return InvalidArgument("frame: expected a payload of " + std::to_string(bytes_wanted) +
                           " bytes, got: " + std::to_string(payload_bytes_));
  }
  while (part_ < parts_.size() && parts_[part_].empty()) ++part_;
  if (payload_bytes_ > 0) sum_.emplace();
  landed_ = true;
  return OkStatus();
}

}  // namespace meshtrain::parameter
