// The rendezvous' port, as strangers and eavesdroppers find it.
#include "runtime/membership/rendezvous_server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/test/client_context_test_peer.h>
#include <gtest/gtest.h>

#include <future>
#include <optional>

#include "proto/meshtrain/v1/rendezvous.grpc.pb.h"
#include "runtime/membership/rendezvous_wire.h"
#include "runtime/rpc/grpc_internal.h"
#include "tests/runtime/membership/membership_testing.h"

namespace meshtrain::membership {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr seconds kPatience{60};
constexpr const char* kAgree = "/meshtrain.v1.Rendezvous/Agree";
constexpr const char* kAttend = "/meshtrain.v1.Rendezvous/Attend";

// What a member put on one call, for who reads the wire and sends it once more.
class Overheard {
 public:
  explicit Overheard(const char* method) : method_(method) {
    grpc::ClientContext context;
    mac_ =
        rpc::CallSigner({.token = "s3cret"}, "ml/test").Sign(context, method, SystemClock().Now());
    metadata_ = grpc::testing::ClientContextTestPeer(&context).GetSendInitialMetadata();
  }
  const char* method() const { return method_; }
  const std::multimap<std::string, std::string>& metadata() const { return metadata_; }
  // Seals what the member sends on this call.
  rpc::CallMac& mac() { return mac_; }

 private:
  const char* method_;
  rpc::CallMac mac_;
  std::multimap<std::string, std::string> metadata_;
};

// A call over a connection of its own.
class OneCall {
 public:
  OneCall(int port, const Overheard& overheard)
      : channel_(rpc::MakeChannel({.address = "127.0.0.1:" + std::to_string(port), .security = {}})
                     .value()),
        stub_(v1::Rendezvous::NewStub(channel_)) {
    context_.set_deadline(std::chrono::system_clock::now() + kPatience);
    for (const auto& [key, value] : overheard.metadata()) context_.AddMetadata(key, value);
    stream_ = overheard.method() == kAgree ? stub_->Agree(&context_) : stub_->Attend(&context_);
  }
  void Say(const v1::Sealed& message) { stream_->Write(message); }
  bool Hear() {
    v1::Sealed said;
    return stream_->Read(&said);
  }
  // The agreement's answer; the server does not hear yet that it is here.
  Result<Result<std::vector<std::string>>> Answer(rpc::CallMac& mac) {
    v1::Sealed said;
    if (!stream_->Read(&said)) return DataLoss("expected an answer, got: none");
    return OpenAgreed(said, mac);
  }
  void SayNoMore() { stream_->WritesDone(); }
  // The server's last word.
  grpc::Status End() {
    while (Hear()) {
    }
    return stream_->Finish();
  }
  void Cancel() { context_.TryCancel(); }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Rendezvous::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::Sealed, v1::Sealed>> stream_;
};

class RendezvousServerTest : public ::testing::Test {
 protected:
  void Start(Duration first_word_within = kPatience) {
    auto made = RendezvousServer::Create({.address = "127.0.0.1",
                                          .security = {.token = "s3cret"},
                                          .job = "ml/test",
                                          .roster = {.tasks = {Chief(), Worker(0), Worker(1)},
                                                     .lost_after = kPatience,
                                                     .stuck_after = kPatience,
                                                     .tick = milliseconds(20)},
                                          .first_word_within = first_word_within});
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    server_ = std::move(*made);
  }
  static v1::Sealed Question(rpc::CallMac& mac) {
    return Seal(AgreeMessage{.task = Worker(0), .instance = 1}, mac);
  }
  static v1::Sealed Join(rpc::CallMac& mac) {
    return Seal(MemberMessage(JoinMessage{
                    .task = Worker(0), .instance = 1, .expected = {Chief(), Worker(0), Worker(1)}}),
                mac);
  }
  int port() const { return server_->port(); }

  std::unique_ptr<RendezvousServer> server_;
};

TEST_F(RendezvousServerTest, AClaimIsGoodForOneCall) {
  Start();
  Overheard overheard(kAgree);
  const v1::Sealed question = Question(overheard.mac());
  OneCall first(port(), overheard);
  first.Say(question);
  const auto answer = first.Answer(overheard.mac());
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_EQ(answer->status().code(), StatusCode::kFailedPrecondition)
      << "the roster's word, no incarnation is open; got: " << answer->status().ToString();
  first.SayNoMore();
  EXPECT_TRUE(first.End().ok());
  OneCall again(port(), overheard);
  again.Say(question);
  const grpc::Status refused = again.End();
  EXPECT_EQ(refused.error_code(), grpc::UNAUTHENTICATED) << refused.error_message();
  EXPECT_THAT(refused.error_message(), HasSubstr("which came before"));
}

TEST_F(RendezvousServerTest, AMessageIsReadInTheCallThatItWasSentInAlone) {
  Start();
  Overheard before(kAttend);
  const v1::Sealed join = Join(before.mac());
  OneCall good(port(), before);
  good.Say(join);
  EXPECT_TRUE(good.Hear());
  // Whoever knows the token made this claim, and it is fresh; but not for this message.
  OneCall moved(port(), Overheard(kAttend));
  moved.Say(join);
  const grpc::Status refused = moved.End();
  EXPECT_EQ(refused.error_code(), grpc::DATA_LOSS) << refused.error_message();
  Overheard question(kAgree);
  OneCall asked(port(), Overheard(kAgree));
  asked.Say(Question(question.mac()));
  EXPECT_EQ(asked.End().error_code(), grpc::DATA_LOSS);
  // Nor twice in its own.
  good.Say(join);
  EXPECT_EQ(good.End().error_code(), grpc::DATA_LOSS);
}

TEST_F(RendezvousServerTest, WhoProvesItselfAndSaysNothingIsSentAway) {
  Start(milliseconds(100));
  for (const char* method : {kAgree, kAttend}) {
    const grpc::Status ended = OneCall(port(), Overheard(method)).End();
    EXPECT_EQ(ended.error_code(), grpc::DEADLINE_EXCEEDED) << method;
    EXPECT_THAT(ended.error_message(), HasSubstr("expected a first message within 0.1 s"));
  }
  // Who has spoken stays.
  Overheard member(kAttend);
  OneCall joined(port(), member);
  joined.Say(Join(member.mac()));
  for (int pulses = 0; pulses < 20; ++pulses) ASSERT_TRUE(joined.Hear()) << pulses;
}

TEST_F(RendezvousServerTest, AServerThatEndsWaitsUntilItsAnswersAreThere) {
  Start();
  Overheard overheard(kAgree);
  OneCall call(port(), overheard);
  call.Say(Question(overheard.mac()));
  // Whoever waits for nothing is not waited for: a member's stream, which a pulse shows to be in,
  // and a call that has asked nothing, which may be in or still be coming.
  OneCall member(port(), Overheard(kAttend));
  ASSERT_TRUE(member.Hear());
  OneCall silent(port(), Overheard(kAgree));
  ASSERT_TRUE(call.Answer(overheard.mac()).ok());
  auto stopping = std::async(std::launch::async, [this] { server_->Stop(kPatience); });
  EXPECT_EQ(member.End().error_code(), grpc::UNAVAILABLE);
  EXPECT_THAT(silent.End().error_code(), ::testing::AnyOf(grpc::UNAVAILABLE, grpc::CANCELLED));
  EXPECT_EQ(stopping.wait_for(milliseconds(200)), std::future_status::timeout);
  call.SayNoMore();
  EXPECT_TRUE(call.End().ok());
  EXPECT_EQ(stopping.wait_for(kPatience), std::future_status::ready);
}

TEST_F(RendezvousServerTest, WhoNeverSaysThatItHasItsAnswerIsNotWaitedForLong) {
  Start();
  Overheard overheard(kAgree);
  OneCall call(port(), overheard);
  call.Say(Question(overheard.mac()));
  ASSERT_TRUE(call.Answer(overheard.mac()).ok());
  server_->Stop(milliseconds(100));
  EXPECT_FALSE(call.End().ok());
}

TEST_F(RendezvousServerTest, WhoDoesNotSayThatItHasItsAnswerIsSentAway) {
  Start(milliseconds(100));
  Overheard overheard(kAgree);
  OneCall call(port(), overheard);
  call.Say(Question(overheard.mac()));
  ASSERT_TRUE(call.Answer(overheard.mac()).ok());
  EXPECT_EQ(call.End().error_code(), grpc::DEADLINE_EXCEEDED);
}

TEST_F(RendezvousServerTest, CallsAtATimeAreBounded) {
  Start();
  constexpr size_t kMost = 4 * 3 + 16;
  std::vector<std::unique_ptr<OneCall>> calls;
  for (size_t i = 0; i < kMost; ++i) {
    calls.push_back(std::make_unique<OneCall>(port(), Overheard(kAttend)));
    ASSERT_TRUE(calls.back()->Hear()) << i;  // a pulse: it is in
  }
  const grpc::Status refused = OneCall(port(), Overheard(kAttend)).End();
  EXPECT_EQ(refused.error_code(), grpc::UNAVAILABLE);
  EXPECT_THAT(refused.error_message(), HasSubstr("expected at most 28 calls of one kind"));
  // One that ends makes room.
  calls.back()->Cancel();
  calls.pop_back();
  for (;;) {
    OneCall next(port(), Overheard(kAttend));
    if (next.Hear()) break;
  }
}

}  // namespace
}  // namespace meshtrain::membership
