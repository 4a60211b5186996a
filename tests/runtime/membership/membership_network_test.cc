// Membership over a network that fails, and with strangers at its port.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <future>
#include <random>

#include "proto/meshtrain/v1/rendezvous.grpc.pb.h"
#include "runtime/rpc/grpc_internal.h"
#include "tests/runtime/membership/alarms.h"
#include "tests/runtime/membership/certificates.h"
#include "tests/runtime/membership/forwarder.h"
#include "tests/runtime/membership/membership_testing.h"

namespace meshtrain::membership {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr seconds kPatience{60};

std::unique_ptr<Membership> Make(MembershipOptions options) {
  auto made = Membership::Create(std::move(options));
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return made.ok() ? std::move(*made) : nullptr;
}

// A chief and two workers, the second of which reaches the chief through a forwarder.
class MembershipNetworkTest : public ::testing::Test {
 protected:
  void Start(MembershipOptions options = {}) {
    members_.clear();
    for (const cluster::TaskId task : {Chief(), Worker(0), Worker(1)}) {
      MembershipOptions one = OptionsFor(
          ChiefAndWorkers(task == Worker(1) ? far_.address() : near_.address(), 2), task);
      if (!options.security.token.empty()) one.security = options.security;
      members_.push_back(Make(one));
    }
  }
  std::vector<Result<Incarnation>> JoinAll() {
    std::vector<std::future<Result<Incarnation>>> joining;
    for (const auto& member : members_) {
      joining.push_back(std::async(std::launch::async, [&member] { return member->Join(0, {}); }));
    }
    std::vector<Result<Incarnation>> out;
    for (auto& one : joining) out.push_back(one.get());
    return out;
  }
  // All are members of one incarnation, and agree.
  void ExpectTogether() {
    for (const auto& joined : JoinAll()) ASSERT_TRUE(joined.ok()) << joined.status().ToString();
    std::vector<std::future<Result<std::vector<std::string>>>> asking;
    for (const auto& member : members_) {
      asking.push_back(std::async(std::launch::async,
                                  [&member] { return member->Agree("n", "", kPatience, {}); }));
    }
    for (auto& one : asking) {
      const auto texts = one.get();
      EXPECT_TRUE(texts.ok()) << texts.status().ToString();
    }
  }

  ReservedPort near_, far_;
  Forwarder forwarder_{far_.port(), near_.port()};
  std::vector<std::unique_ptr<Membership>> members_;
};

TEST_F(MembershipNetworkTest, AConnectionThatIsCutIsALossForBothSides) {
  Start();
  ExpectTogether();
  Alarms of_chief, of_far;
  of_chief.Listen(*members_[0]);
  of_far.Listen(*members_[2]);
  forwarder_.Cut();
  EXPECT_THAT(of_chief.First(kPatience).message(), HasSubstr("worker-1 lost: connection closed"));
  EXPECT_THAT(of_far.First(kPatience).message(), HasSubstr("chief-0 lost: connection closed"));
  ExpectTogether();
}

TEST_F(MembershipNetworkTest, APartitionInEitherDirectionIsNoticedOnBothSidesAndHeals) {
  Start();
  for (const auto& [to_chief, to_worker] : {std::pair(true, false), {false, true}, {true, true}}) {
    SCOPED_TRACE(::testing::Message()
                 << "blocked to the chief: " << to_chief << ", to the worker: " << to_worker);
    ExpectTogether();
    Alarms of_chief, of_near, of_far;
    of_chief.Listen(*members_[0]);
    of_near.Listen(*members_[1]);
    of_far.Listen(*members_[2]);
    forwarder_.Block(to_chief, to_worker);
    EXPECT_THAT(of_chief.First(kPatience).message(), HasSubstr("worker-1 lost"));
    EXPECT_THAT(of_near.First(kPatience).message(), HasSubstr("worker-1 lost"));
    const Status far = of_far.First(kPatience);
    EXPECT_EQ(far.code(), StatusCode::kUnavailable);
    // Blocked towards it: it hears nothing. Else the chief's word arrives: it is the one that was
    // lost.
    EXPECT_THAT(far.message(), to_worker ? HasSubstr("chief-0 lost: silent for")
                                         : HasSubstr("worker-1 lost: silent for"));
    forwarder_.Block(false, false);
  }
  ExpectTogether();
}

TEST_F(MembershipNetworkTest, JoinOutlastsAPartition) {
  Start();
  ExpectTogether();
  forwarder_.Block(true, true);
  auto joining = std::async(std::launch::async, [&] { return JoinAll(); });
  // Twice the silence that counts as lost. At five seconds the chief looks for another server at
  // its address, and where all meet just then they would have to meet once more.
  std::this_thread::sleep_for(seconds(3));
  forwarder_.Block(false, false);
  for (const auto& joined : joining.get()) EXPECT_TRUE(joined.ok()) << joined.status().ToString();
}

// A call as a stranger would make it: only what the test puts on it.
grpc::Status Attend(int port, const std::function<void(grpc::ClientContext&)>& sign) {
  const auto channel =
      rpc::MakeChannel({.address = "127.0.0.1:" + std::to_string(port), .security = {}}).value();
  const auto stub = v1::Rendezvous::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  sign(context);
  const auto stream = stub->Attend(&context);
  v1::Sealed said;
  EXPECT_FALSE(stream->Read(&said));
  return stream->Finish();
}

TEST_F(MembershipNetworkTest, StrangersAreRefusedAndTheServerGoesOn) {
  Start();
  const auto now = [] { return SystemClock().Now(); };
  constexpr std::string_view kMethod = "/meshtrain.v1.Rendezvous/Attend";
  const grpc::Status unsigned_call = Attend(near_.port(), [](grpc::ClientContext&) {});
  EXPECT_EQ(unsigned_call.error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_THAT(unsigned_call.error_message(), HasSubstr("protocol"));
  const grpc::Status newer = Attend(near_.port(), [](grpc::ClientContext& context) {
    context.AddMetadata("meshtrain-protocol", std::to_string(rpc::kProtocolVersion + 1));
  });
  EXPECT_EQ(newer.error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_THAT(newer.error_message(),
              AllOf(HasSubstr("speaks protocol " + std::to_string(rpc::kProtocolVersion) + " "),
                    HasSubstr("got: " + std::to_string(rpc::kProtocolVersion + 1))));
  const grpc::Status other_job = Attend(near_.port(), [&](grpc::ClientContext& context) {
    rpc::CallSigner({.token = "s3cret"}, "ml/other").Sign(context, kMethod, now());
  });
  EXPECT_EQ(other_job.error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_THAT(other_job.error_message(), HasSubstr("another job"));
  const grpc::Status guess = Attend(near_.port(), [&](grpc::ClientContext& context) {
    rpc::CallSigner({.token = "guess"}, "ml/test").Sign(context, kMethod, now());
  });
  EXPECT_EQ(guess.error_code(), grpc::PERMISSION_DENIED);
  const grpc::Status old = Attend(near_.port(), [&](grpc::ClientContext& context) {
    rpc::CallSigner({.token = "s3cret"}, "ml/test")
        .Sign(context, kMethod, now() - std::chrono::hours(1));
  });
  EXPECT_EQ(old.error_code(), grpc::PERMISSION_DENIED);
  EXPECT_THAT(old.error_message(), HasSubstr("clocks"));
  // A proof for one method is none for another.
  const grpc::Status crossed = Attend(near_.port(), [&](grpc::ClientContext& context) {
    rpc::CallSigner({.token = "s3cret"}, "ml/test")
        .Sign(context, "/meshtrain.v1.Rendezvous/Agree", now());
  });
  EXPECT_EQ(crossed.error_code(), grpc::PERMISSION_DENIED);
  ExpectTogether();
}

TEST_F(MembershipNetworkTest, AWrongTokenIsFinalForJoin) {
  Start();
  MembershipOptions options = OptionsFor(ChiefAndWorkers(near_.address(), 2), Worker(1));
  options.security.token = "guess";
  const Status status = Make(options)->Join(0, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(status.message(), HasSubstr("token"));
}

TEST_F(MembershipNetworkTest, NoiseAtThePortDoesNoHarm) {
  Start();
  std::mt19937 random(7);
  std::vector<int> open;
  for (int i = 0; i < 100; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{.sin_family = AF_INET,
                        .sin_port = htons(static_cast<uint16_t>(near_.port()))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    std::string noise = i % 3 == 0   ? "GET / HTTP/1.1\r\n\r\n"
                        : i % 3 == 1 ? "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
                                     : "";
    for (int byte = 0; byte < 1000; ++byte) noise += static_cast<char>(random());
    send(fd, noise.data(), noise.size(), MSG_NOSIGNAL);
    open.push_back(fd);
  }
  ExpectTogether();
  for (const int fd : open) close(fd);
}

class MembershipTlsTest : public MembershipNetworkTest {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "membership_network_test." + std::to_string(getpid());
    WriteCertificates(folder_ + "/ours");
    WriteCertificates(folder_ + "/theirs");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  rpc::Security With(const std::string& name) const {
    return {.token = "s3cret",
            .ca_file = folder_ + "/" + name + "/ca.pem",
            .certificate_file = folder_ + "/" + name + "/cert.pem",
            .key_file = folder_ + "/" + name + "/key.pem"};
  }
  std::string folder_;
};

TEST_F(MembershipTlsTest, MembersWithCertificatesComeTogether) {
  Start({.security = With("ours")});
  ExpectTogether();
}

TEST_F(MembershipTlsTest, WithoutOrWithAnotherAuthoritysCertificateNobodyGetsIn) {
  Start({.security = With("ours")});
  for (const rpc::Security& security : {rpc::Security{.token = "s3cret"}, With("theirs")}) {
    MembershipOptions options = OptionsFor(ChiefAndWorkers(near_.address(), 2), Worker(1));
    options.security = security;
    options.join_timeout = seconds(2);
    const Status status = Make(options)->Join(0, {}).status();
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr("chief-0 does not answer"));
  }
  ExpectTogether();
}

TEST_F(MembershipTlsTest, AMissingCertificateFileIsSaid) {
  MembershipOptions options = OptionsFor(ChiefAndWorkers(near_.address(), 2), Chief());
  options.security = With("nobodys");
  const Status status = Membership::Create(options).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("nobodys/ca.pem"));
  options.config.task = Worker(0);
  EXPECT_EQ(Make(options)->Join(0, {}).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace meshtrain::membership
