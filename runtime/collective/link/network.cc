#include "runtime/collective/link/network.h"

#include <poll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "runtime/base/check.h"
#include "runtime/wire/checksum.h"

namespace meshtrain::collective {
namespace {

using std::chrono::steady_clock;

// Small enough that a frame stays in the second-level cache while it is checked and added.
constexpr int64_t kFrameBytes = 256 << 10;
constexpr int64_t kSmallestFrame = 16 << 10;
// Of all that a member receives: up to here a waiter yields before it sleeps.
constexpr int64_t kSmallBytes = 64 << 10;
constexpr auto kLookUp = std::chrono::milliseconds(100);

// A round's bytes in at least four frames, so that its end does not wait for its beginning. Both
// sides count alike.
int64_t FrameOf(int64_t round_bytes, int64_t width) {
  return std::clamp(round_bytes / 4, kSmallestFrame, kFrameBytes) / 64 * 64 / width * width;
}

struct Bytes {
  const std::byte* begin = nullptr;
  int64_t count = 0;
  bool Overlaps(const Bytes& other) const {
    return count > 0 && other.count > 0 && begin < other.begin + other.count &&
           other.begin < begin + count;
  }
};

}  // namespace

// One schedule under way. Two cursors go over its rounds: the sender's and the receiver's, each
// frame by frame; each waits for the other where they touch the same bytes.
class Network::Running {
 public:
  Running(Network& network, const Call& call, std::span<const int> members,
          const Schedule& schedule, const Operands& operands)
      : network_(network),
        call_(call),
        members_(members),
        rounds_(schedule.rounds),
        operands_(operands) {
    int64_t bytes = 0;
    for (const Round& round : rounds_) bytes += round.receive.count * operands_.width;
    small_ = bytes <= kSmallBytes;
  }

  Status Run() {
    SkipSent();
    while (send_round_ < rounds_.size() || receive_round_ < rounds_.size()) {
      bool moved = false;
      MT_RETURN_IF_ERROR(Receive(moved));
      MT_RETURN_IF_ERROR(Send(moved));
      if (moved) {
        idle_ = 0;
      } else {
        MT_RETURN_IF_ERROR(Wait());
      }
    }
    return OkStatus();
  }

 private:
  std::byte* At(const Part& part) const {
    std::byte* base = part.memory == Memory::kInput    ? const_cast<std::byte*>(operands_.input)
                      : part.memory == Memory::kOutput ? operands_.output
                                                       : network_.scratch_.data();
    return base + part.begin * operands_.width;
  }
  Bytes All(const Part& part) const { return {At(part), part.count * operands_.width}; }
  bool Sends(const Round& round) const { return round.to >= 0 && round.send.count > 0; }
  bool Receives(const Round& round) const { return round.from >= 0 && round.receive.count > 0; }
  Stream& Link(int member) const { return network_.links_[members_[member]]; }
  int Fd(int member) const { return Link(member).fd(); }

  // --- sending

  void SkipSent() {
    while (send_round_ < rounds_.size() && !Sends(rounds_[send_round_])) ++send_round_;
  }

  // Whether the next frame's bytes are there: no receive of an earlier round has still to write
  // them.
  bool MaySend(const Bytes& frame) const {
    for (size_t k = receive_round_; k < send_round_; ++k) {
      if (rounds_[k].receive.count == 0) continue;
      Bytes missing = All(rounds_[k].receive);
      if (k == receive_round_) {
        missing.begin += applied_;
        missing.count -= applied_;
      }
      if (missing.Overlaps(frame)) return false;
    }
    return true;
  }

  uint64_t ChecksumOf(const Bytes& frame, int64_t index) const {
    // What came in the last round and goes on unchanged keeps its checksum.
    if (send_round_ > 0) {
      const Round& last = rounds_[send_round_ - 1];
      const Sums& sums = sums_[(send_round_ - 1) % 2];
      if (Receives(last) && !last.reduce && last.receive == rounds_[send_round_].send &&
          sums.round == send_round_ - 1) {
        return sums.of[index];
      }
    }
    return wire::Checksum(frame.begin, frame.count);
  }

  Status Send(bool& moved) {
    if (send_round_ < rounds_.size()) {
      const Round& round = rounds_[send_round_];
      const Bytes all = All(round.send);
      if (!sending_) {
        const int64_t size = FrameOf(all.count, operands_.width);
        frame_ = {all.begin + sent_, std::min(size, all.count - sent_)};
        if (!MaySend(frame_)) return OkStatus();
        FrameHeader header = call_.header;
        header.round = static_cast<uint32_t>(send_round_);
        header.length = static_cast<uint32_t>(frame_.count);
        header.checksum = ChecksumOf(frame_, sent_ / size);
        EncodeFrame(header, send_header_);
        sending_ = true;
        frame_sent_ = 0;
      }
      const int64_t headers = kFrameHeaderBytes;
      Stream& link = Link(round.to);
      if (frame_sent_ < headers + frame_.count) {
        iovec io[2];
        size_t parts = 0;
        if (frame_sent_ < headers) {
          io[parts++] = {send_header_.data() + frame_sent_,
                         static_cast<size_t>(headers - frame_sent_)};
        }
        const int64_t payload = std::max<int64_t>(0, frame_sent_ - headers);
        io[parts++] = {const_cast<std::byte*>(frame_.begin + payload),
                       static_cast<size_t>(frame_.count - payload)};
        const int64_t n = link.Send({io, parts});
        if (n < 0) return Gone(round.to, link.Why());
        moved = n > 0 || moved;
        frame_sent_ += n;
      }
      const int gone = link.Flush();
      if (gone < 0) return Gone(round.to, link.Why());
      send_blocked_ = frame_sent_ < headers + frame_.count || gone == 0;
      if (send_blocked_) return OkStatus();
      moved = true;
      sending_ = false;
      sent_ += frame_.count;
      network_.bytes_sent_ += frame_.count;
      if (sent_ == all.count) {
        ++send_round_;
        sent_ = 0;
        SkipSent();
      }
    }
    return OkStatus();
  }

  // --- receiving

  // Over rounds that receive nothing; carries out local copies.
  void SkipReceived(bool& moved) {
    while (receive_round_ < rounds_.size() && !Receives(rounds_[receive_round_])) {
      const Round& round = rounds_[receive_round_];
      if (round.from < 0 && round.receive.count > 0 && At(round.receive) != At(round.operand)) {
        if (!MayWrite(All(round.receive))) return;
        std::memcpy(At(round.receive), At(round.operand), round.receive.count * operands_.width);
      }
      ++receive_round_;
      moved = true;
    }
  }

  // Whether bytes may be overwritten: no send up to the receiver's round has still to read them.
  bool MayWrite(const Bytes& target) const {
    for (size_t i = send_round_; i <= receive_round_ && i < rounds_.size(); ++i) {
      if (!Sends(rounds_[i])) continue;
      Bytes left = All(rounds_[i].send);
      if (i == send_round_) {
        left.begin += sent_;
        left.count -= sent_;
      }
      if (left.Overlaps(target)) return false;
    }
    return true;
  }

  Status Receive(bool& moved) {
    receive_waits_ = false;
    while (true) {
      SkipReceived(moved);
      if (receive_round_ >= rounds_.size() || !Receives(rounds_[receive_round_])) return OkStatus();
      const Round& round = rounds_[receive_round_];
      const Bytes all = All(round.receive);
      const int64_t size = FrameOf(all.count, operands_.width);
      const int64_t length = std::min(size, all.count - applied_);
      std::byte* target = At(round.receive) + applied_;
      std::byte* into = round.reduce ? network_.staging_.data() : target;
      const int64_t headers = kFrameHeaderBytes;
      if (received_ < headers + length) {
        if (!round.reduce && !MayWrite({target, length})) return OkStatus();
        iovec io[2];
        size_t parts = 0;
        if (received_ < headers) {
          io[parts++] = {receive_header_.data() + received_,
                         static_cast<size_t>(headers - received_)};
        }
        const int64_t payload = std::max<int64_t>(0, received_ - headers);
        io[parts++] = {into + payload, static_cast<size_t>(length - payload)};
        Stream& link = Link(round.from);
        const int64_t n = link.Receive({io, parts});
        if (n < 0) return Gone(round.from, link.Why());
        if (n == 0) {
          receive_waits_ = true;
          return OkStatus();
        }
        moved = true;
        const bool had_header = received_ >= headers;
        received_ += n;
        if (!had_header && received_ >= headers) MT_RETURN_IF_ERROR(CheckHeader(round, length));
        if (received_ < headers + length) continue;
      }
      if (round.reduce && !MayWrite({target, length})) return OkStatus();
      const uint64_t sum = wire::Checksum(into, length);
      if (sum != expected_sum_) return Spoilt(round, sum);
      if (round.reduce) {
        const std::byte* operand = At(round.operand) + applied_;
        operands_.reduce(target, round.incoming_left ? into : operand,
                         round.incoming_left ? operand : into, length / operands_.width);
      } else {
        Sums& sums = sums_[receive_round_ % 2];
        if (applied_ == 0) sums.of.clear();
        sums.round = receive_round_;
        sums.of.push_back(sum);
      }
      moved = true;
      received_ = 0;
      applied_ += length;
      if (applied_ == all.count) {
        ++receive_round_;
        applied_ = 0;
      }
      return OkStatus();  // what was just added is sent while it is in the cache
    }
  }

  Status CheckHeader(const Round& round, int64_t length) {
    Result<FrameHeader> header = DecodeFrame(receive_header_);
    const int process = members_[round.from];
    if (!header.ok()) return header.status().At("from " + call_.health->Name(process));
    FrameHeader want = call_.header;
    want.source = static_cast<uint32_t>(process);
    want.round = static_cast<uint32_t>(receive_round_);
    want.length = static_cast<uint32_t>(length);
    const FrameDifference difference = Compare(*header, want);
    if (difference != FrameDifference::kNone) {
      return call_.diagnosis->Diverges(difference, *header, want);
    }
    expected_sum_ = header->checksum;
    return OkStatus();
  }

  Status Spoilt(const Round& round, uint64_t sum) const {
    return Unavailable("bytes were changed on their way from " +
                       call_.health->Name(members_[round.from]) + " to " +
                       call_.health->Name(static_cast<int>(call_.header.source)) +
                       ": expected checksum " + std::to_string(expected_sum_) +
                       ", got: " + std::to_string(sum))
        .From(Origin::kPeers);
  }

  // A link that broke. Its process may have said why, on its other connection.
  Status Gone(int member, const std::string& how) const {
    pollfd event = {call_.health->event(), POLLIN, 0};
    poll(&event, 1, static_cast<int>(kLookUp.count()));
    MT_RETURN_IF_ERROR(call_.health->Check());
    const int process = members_[member];
    if (call_.health->HasLeft(process)) {
      return Unavailable(call_.health->Name(process) + " has left the job").From(Origin::kPeers);
    }
    return Unavailable("the connection to " + call_.health->Name(process) + " broke: " + how)
        .From(Origin::kPeers);
  }

  // --- waiting

  Status Wait() {
    if (idle_++ == 0) yields_ = small_ ? network_.yielder_.Begin() : 0;
    if (idle_ <= yields_) {
      network_.yielder_.Yield();
      return OkStatus();
    }
    if (idle_ == yields_ + 1) {
      since_ = steady_clock::now();
      int missing[2];
      size_t count = 0;
      if (receive_waits_) missing[count++] = members_[rounds_[receive_round_].from];
      if (send_blocked_) missing[count++] = members_[rounds_[send_round_].to];
      call_.health->WaitFor({missing, count});
    }
    pollfd fds[3] = {{call_.health->event(), POLLIN, 0}};
    int count = 1;
    if (receive_waits_) fds[count++] = {Fd(rounds_[receive_round_].from), POLLIN, 0};
    if (sending_ && send_blocked_) fds[count++] = {Fd(rounds_[send_round_].to), POLLOUT, 0};
    MT_CHECK(count > 1);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(call_.deadline -
                                                                   (steady_clock::now() - since_));
    poll(fds, count, static_cast<int>(std::clamp<int64_t>(left.count(), 1, kLookUp.count())));
    MT_RETURN_IF_ERROR(call_.health->Check());
    if (steady_clock::now() - since_ >= call_.deadline) {
      return call_.diagnosis->Late(
          members_[receive_waits_ ? rounds_[receive_round_].from : rounds_[send_round_].to]);
    }
    return OkStatus();
  }

  Network& network_;
  const Call& call_;
  const std::span<const int> members_;
  const std::vector<Round>& rounds_;
  const Operands& operands_;

  size_t send_round_ = 0;
  int64_t sent_ = 0;  // bytes of the round in frames that are gone
  bool sending_ = false, send_blocked_ = false;
  Bytes frame_;
  int64_t frame_sent_ = 0;  // bytes of header and payload
  FrameBytes send_header_;

  size_t receive_round_ = 0;
  int64_t applied_ = 0;   // bytes of the round that are in place
  int64_t received_ = 0;  // bytes of the frame: header and payload
  bool receive_waits_ = false;
  FrameBytes receive_header_;
  uint64_t expected_sum_ = 0;
  // Of the frames that were received as copies; by round, modulo 2.
  struct Sums {
    size_t round = 0;
    std::vector<uint64_t> of;
  };
  Sums sums_[2];

  bool small_ = false;
  int yields_ = 0, idle_ = 0;
  SteadyTime since_;
};

Network::Network() : staging_(kFrameBytes) {}
Network::~Network() = default;

void Network::Start(int processes) {
  links_.clear();
  links_.resize(processes);
}

Status Network::Run(const Call& call, std::span<const int> members, const Schedule& schedule,
                    const Operands& operands) {
  const auto scratch = static_cast<size_t>(schedule.scratch * operands.width);
  if (scratch_.size() < scratch) scratch_.resize(scratch);
  return Running(*this, call, members, schedule, operands).Run();
}

}  // namespace meshtrain::collective
