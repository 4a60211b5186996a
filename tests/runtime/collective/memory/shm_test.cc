#include "runtime/collective/memory/shm.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace meshtrain::collective {
namespace {

class NamesWhatIsWrong final : public Diagnosis {
 public:
  Status Late(int process) override { return Unavailable("late " + std::to_string(process)); }
  Status Diverges(FrameDifference difference, const FrameHeader& got,
                  const FrameHeader& want) override {
    EXPECT_EQ(difference, FrameDifference::kIncarnation);
    return FailedPrecondition("process " + std::to_string(want.source) + " is in incarnation " +
                              std::to_string(got.incarnation) + ", we in " +
                              std::to_string(want.incarnation));
  }
};

constexpr uint64_t kIncarnation = 3;

// One of two processes of a host.
struct Process {
  explicit Process(int me)
      : me(me),
        segment(std::move(*Segment::Create())),
        memory(std::make_unique<SharedMemory>(*segment)) {
    EXPECT_TRUE(health.Init().ok());
    Begin(kIncarnation);
    peers.processes = {0, 1};
    peers.hosts = {0, 0};
    peers.me = me;
  }
  void Begin(uint64_t incarnation) {
    health.Start(incarnation, {"a", "b"});
    memory->Start(2, incarnation);
  }
  void Meet(const Process& peer) {
    memory->Attach(peer.me, std::move(*PeerSegment::Map(Socket(dup(peer.segment->fd())))));
  }
  Status AllReduce(std::span<float> values, ReduceFn reduce) {
    Call call;
    call.peers = &peers;
    call.header.incarnation = kIncarnation;
    call.header.collective = 1;
    call.header.source = static_cast<uint32_t>(me);
    call.deadline = std::chrono::seconds(60);
    call.health = &health;
    call.diagnosis = &diagnosis;
    auto* bytes = reinterpret_cast<std::byte*>(values.data());
    return memory->AllReduce({&call, members, me, 0}, bytes, bytes,
                             static_cast<int64_t>(values.size()), {sizeof(float), reduce, reduce});
  }

  const int me;
  const std::vector<int> members = {0, 1};
  ProcessGroup peers;
  std::unique_ptr<Segment> segment;
  std::unique_ptr<SharedMemory> memory;
  Health health;
  NamesWhatIsWrong diagnosis;
};

void Add(std::byte* to, const std::byte* left, const std::byte* right, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    reinterpret_cast<float*>(to)[i] =
        reinterpret_cast<const float*>(left)[i] + reinterpret_cast<const float*>(right)[i];
  }
}

// In elements: one round in which each reads all, and a pipeline of them.
class ShmTest : public testing::TestWithParam<int64_t> {};

TEST_P(ShmTest, AllReduceGivesBothTheSum) {
  Process a(0), b(1);
  a.Meet(b);
  b.Meet(a);
  std::vector<float> of_a(GetParam(), 1), of_b(GetParam(), 2);
  std::thread other([&] { EXPECT_TRUE(b.AllReduce(of_b, Add).ok()); });
  EXPECT_TRUE(a.AllReduce(of_a, Add).ok());
  other.join();
  EXPECT_EQ(of_a, std::vector<float>(GetParam(), 3));
  EXPECT_EQ(of_b, of_a);
}

// The sleep falls between the peer's word that its operand is there and the read of that operand.
std::atomic<bool> asleep, awake;
void Sleep(std::byte* to, const std::byte* left, const std::byte* right, int64_t n) {
  asleep = true;
  asleep.notify_all();
  awake.wait(false);
  Add(to, left, right, n);
}

TEST_P(ShmTest, WhoSleepsUntilThePeersAreInAnotherIncarnationTakesNothingOfIt) {
  asleep = awake = false;
  Process a(0), b(1);
  a.Meet(b);
  b.Meet(a);
  std::vector<float> of_a(GetParam(), 1), of_b(GetParam(), 2);
  Status ours;
  std::thread sleeper([&] { ours = a.AllReduce(of_a, Sleep); });
  std::thread other([&] {
    static_cast<void>(b.AllReduce(of_b, Add));  // which ends, or misses the sleeper
  });
  asleep.wait(false);
  b.health.Fail(Unavailable("a does not answer"));
  other.join();
  b.Begin(kIncarnation + 1);
  // What the new incarnation's collectives leave there: far on, and with bytes of its own.
  for (int slot = 0; slot < kSlots; ++slot) {
    std::memset(b.segment->payload(slot), 0x40, kSlotBytes);
    std::memset(b.segment->result(slot), 0x40, kResultBytes);
  }
  b.segment->head().ticket.store(~uint64_t{0});
  awake = true;
  awake.notify_all();
  sleeper.join();
  EXPECT_EQ(ours.code(), StatusCode::kFailedPrecondition) << ours.message();
  EXPECT_EQ(ours.message(), "process 1 is in incarnation 4, we in 3");
}

INSTANTIATE_TEST_SUITE_P(Sizes, ShmTest, testing::Values(100, 20'000));

}  // namespace
}  // namespace meshtrain::collective
