#include "runtime/wire/tls.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "operator/certificates/certificates.h"
#include "runtime/base/file.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::wire {
namespace {

using certificates::Authority;
using certificates::Validity;
using std::chrono::hours;
using ::testing::HasSubstr;

TimePoint Now() { return SystemClock().Now(); }
Validity Hour() { return {.from = Now() - hours(1), .until = Now() + hours(1)}; }

// Two ends of a connection over loopback, neither of which blocks.
std::pair<FileDescriptor, FileDescriptor> Connected() {
  const FileDescriptor listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  FileDescriptor one(::socket(AF_INET, SOCK_STREAM, 0));
  // Small, so that what is sent soon finds no room.
  const int bytes = 16 << 10;
  ::setsockopt(one.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  ::setsockopt(one.get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  EXPECT_EQ(::connect(one.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  return {std::move(one), FileDescriptor(::accept(listener.get(), nullptr, nullptr))};
}

class TlsTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
  std::unique_ptr<Authority> NewAuthority(const std::string& name = "authority") {
    return Authority::Create(name, Hour()).value();
  }
  // A certificate of `by`, for someone who trusts `trusted`.
  Result<std::shared_ptr<const TlsContext>> Make(const Authority& by, const Authority& trusted,
                                                 const std::vector<std::string>& hosts = {"peer"},
                                                 std::optional<Validity> validity = {}) {
    const auto made = by.Sign("peer", hosts, validity.value_or(Hour())).value();
    const std::string id = std::to_string(++made_);
    return TlsContext::Create({.ca = Write("ca" + id, trusted.certificate() + by.certificate()),
                               .certificate = Write("cert" + id, made.certificate),
                               .key = Write("key" + id, made.key)});
  }

  // Shakes hands until both are done or failed: what came of it at the side that connects, at the
  // other; then reads once at the first, which hears only now that it was refused.
  std::pair<Status, Status> Shake(const std::shared_ptr<const TlsContext>& connects,
                                  const std::shared_ptr<const TlsContext>& accepts,
                                  const std::string& host = "peer") {
    ends_ = Connected();
    one_ = TlsStream::Connect(connects, ends_.first.get(), host);
    other_ = TlsStream::Accept(accepts, ends_.second.get());
    Status out[2];
    bool done[2] = {};
    for (int round = 0; round < 1000 && !(done[0] && done[1]); ++round) {
      for (int side = 0; side < 2; ++side) {
        if (done[side]) continue;
        const auto progress = (side == 0 ? one_ : other_)->Handshake();
        out[side] = progress.status();
        done[side] = !progress.ok() || *progress == TlsStream::Advance::kDone;
      }
      std::this_thread::yield();
    }
    EXPECT_TRUE(done[0] && done[1]) << "the handshake does not end";
    char byte;
    for (int round = 0; out[0].ok() && !out[1].ok() && round < 1000; ++round) {
      if (one_->Receive(&byte, 1) == -1) out[0] = one_->error();
      std::this_thread::yield();
    }
    return {out[0], out[1]};
  }

  testing_folder::TempFolder folder_;
  int made_ = 0;
  std::pair<FileDescriptor, FileDescriptor> ends_;
  std::unique_ptr<TlsStream> one_, other_;
};

TEST_F(TlsTest, PeersOfOneAuthorityShakeHands) {
  const auto authority = NewAuthority();
  const auto context =
      Make(*authority, *authority, {"*.job.ml.svc", "127.0.0.1", "::1", "peer"}).value();
  for (const char* host : {"job-worker-0.job.ml.svc", "127.0.0.1", "::1", "peer"}) {
    const auto [one, other] = Shake(context, context, host);
    EXPECT_TRUE(one.ok()) << one.ToString();
    EXPECT_TRUE(other.ok()) << other.ToString();
  }
}

TEST_F(TlsTest, AnotherNameIsRefusedByWhoConnects) {
  const auto authority = NewAuthority();
  const auto context = Make(*authority, *authority, {"*.job.ml.svc", "10.0.0.1"}).value();
  for (const char* host : {"job.ml.svc", "a.b.job.ml.svc", "job-worker-0.other.ml.svc", "127.0.0.1",
                           "::1", "localhost"}) {
    const auto [one, other] = Shake(context, context, host);
    EXPECT_EQ(one.code(), StatusCode::kUnauthenticated) << host;
    EXPECT_THAT(one.message(), HasSubstr("its certificate is refused: "));
    EXPECT_THAT(one.message(), HasSubstr(std::string("expected one for ") + host));
    EXPECT_EQ(other.code(), StatusCode::kUnauthenticated) << host;
    EXPECT_THAT(other.message(), HasSubstr("it refuses our certificate"));
  }
}

TEST_F(TlsTest, AnotherAuthorityIsRefusedByWhomeverDoesNotTrustIt) {
  const auto ours = NewAuthority("ours"), theirs = NewAuthority("theirs");
  const auto good = Make(*ours, *ours).value(), strange = Make(*theirs, *theirs).value();
  {
    const auto [one, other] = Shake(good, strange);
    EXPECT_EQ(one.code(), StatusCode::kUnauthenticated);
    EXPECT_THAT(one.message(), HasSubstr("its certificate is refused: "));
    EXPECT_EQ(other.code(), StatusCode::kUnauthenticated);
    EXPECT_THAT(other.message(), HasSubstr("it refuses our certificate: "));
  }
  // Who connects trusts both, who listens does not.
  const auto [one, other] = Shake(Make(*theirs, *ours).value(), good);
  EXPECT_EQ(other.code(), StatusCode::kUnauthenticated);
  EXPECT_THAT(other.message(), HasSubstr("its certificate is refused: "));
  EXPECT_EQ(one.code(), StatusCode::kUnauthenticated);
  EXPECT_THAT(one.message(), HasSubstr("it refuses our certificate: "));
}

TEST_F(TlsTest, ACertificateThatExpiresMeanwhileIsRefused) {
  const auto authority = NewAuthority();
  const auto good = Make(*authority, *authority).value();
  const Validity short_one{.from = Now() - hours(1), .until = Now() + std::chrono::seconds(2)};
  const auto expires = Make(*authority, *authority, {"peer"}, short_one).value();
  while (Now() < short_one.until + std::chrono::seconds(1)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const auto [one, other] = Shake(good, expires);
  EXPECT_EQ(one.code(), StatusCode::kUnauthenticated);
  EXPECT_THAT(one.message(), HasSubstr("its certificate is refused: certificate has expired"));
  EXPECT_THAT(other.message(), HasSubstr("it refuses our certificate: "));
}

TEST_F(TlsTest, WhoSpeaksNoTlsIsToldApart) {
  const auto authority = NewAuthority();
  const auto context = Make(*authority, *authority).value();
  for (const bool says_something : {true, false}) {
    for (const bool connects : {true, false}) {
      auto [ours, theirs] = Connected();
      const auto stream = connects ? TlsStream::Connect(context, ours.get(), "peer")
                                   : TlsStream::Accept(context, ours.get());
      if (says_something) {
        EXPECT_GT(::send(theirs.get(), "GET / HTTP/1.1\r\n\r\n", 18, 0), 0);
      }
      ::shutdown(theirs.get(), SHUT_WR);
      Result<TlsStream::Advance> progress = stream->Handshake();
      for (int i = 0; i < 1000 && progress.ok(); ++i) progress = stream->Handshake();
      ASSERT_FALSE(progress.ok());
      EXPECT_EQ(progress.status().code(), StatusCode::kUnavailable);
      EXPECT_THAT(progress.status().message(),
                  HasSubstr(says_something ? "expected TLS from the other side, got: other bytes"
                                           : "the other side closed the connection"));
    }
  }
}

TEST_F(TlsTest, BytesArriveWholeBothWaysHoweverLittleTheSocketTakes) {
  const auto authority = NewAuthority();
  const auto context = Make(*authority, *authority).value();
  const auto [shaken, too] = Shake(context, context);
  ASSERT_TRUE(shaken.ok() && too.ok());
  constexpr size_t kBytes = 3'000'001;
  std::vector<uint8_t> sent[2], got[2];
  for (int side = 0; side < 2; ++side) {
    for (size_t i = 0; i < kBytes; ++i) sent[side].push_back(static_cast<uint8_t>(i * 31 + side));
  }
  size_t given[2] = {};
  TlsStream* const streams[2] = {one_.get(), other_.get()};
  bool was_full = false;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while ((got[0].size() < kBytes || got[1].size() < kBytes) &&
         std::chrono::steady_clock::now() < end) {
    for (int side = 0; side < 2; ++side) {
      const int64_t n = streams[side]->Send(sent[side].data() + given[side],
                                            std::min<size_t>(kBytes - given[side], 700'000));
      ASSERT_GE(n, 0) << streams[side]->error().ToString();
      given[side] += static_cast<size_t>(n);
      ASSERT_TRUE(streams[side]->Flush());
      was_full = was_full || streams[side]->unsent();
    }
    for (int side = 0; side < 2; ++side) {
      uint8_t part[100'000];
      const int64_t n = streams[side]->Receive(part, sizeof part);
      ASSERT_GE(n, 0) << streams[side]->error().ToString();
      got[side].insert(got[side].end(), part, part + n);
    }
  }
  EXPECT_EQ(got[1], sent[0]);
  EXPECT_EQ(got[0], sent[1]);
  EXPECT_TRUE(was_full) << "the socket took all at once, so nothing was shown";
  // What was sent before the end is heard, then the end.
  EXPECT_EQ(one_->Send("last", 4), 4);
  one_.reset();
  ends_.first = FileDescriptor();
  char last[8];
  int64_t n = 0;
  while ((n = other_->Receive(last, sizeof last)) == 0) std::this_thread::yield();
  EXPECT_EQ(std::string(last, static_cast<size_t>(n)), "last");
  while ((n = other_->Receive(last, sizeof last)) == 0) std::this_thread::yield();
  EXPECT_EQ(n, -2);
}

TEST_F(TlsTest, AByteThatChangesOnTheWayIsAnError) {
  const auto authority = NewAuthority();
  const auto context = Make(*authority, *authority).value();
  const auto [shaken, too] = Shake(context, context);
  ASSERT_TRUE(shaken.ok() && too.ok());
  // A record of our own making: of the right form, sealed with no key.
  const std::string record = std::string("\x17\x03\x03\x00\x20", 5) + std::string(32, 'x');
  ASSERT_EQ(::send(ends_.first.get(), record.data(), record.size(), 0),
            static_cast<ssize_t>(record.size()));
  char byte;
  int64_t n = 0;
  while ((n = other_->Receive(&byte, 1)) == 0) std::this_thread::yield();
  EXPECT_EQ(n, -1);
  EXPECT_EQ(other_->error().code(), StatusCode::kUnavailable) << other_->error().ToString();
}

TEST_F(TlsTest, FilesThatDoNotFitAreNamed) {
  const auto ours = NewAuthority("ours"), theirs = NewAuthority("theirs");
  const auto good = ours->Sign("peer", {"peer"}, Hour()).value();
  const auto other = ours->Sign("peer", {"peer"}, Hour()).value();
  const auto strange = theirs->Sign("peer", {"peer"}, Hour()).value();
  const auto expired =
      ours->Sign("peer", {"peer"}, {.from = Now() - hours(3), .until = Now() - hours(2)}).value();
  const auto early =
      ours->Sign("peer", {"peer"}, {.from = Now() + hours(2), .until = Now() + hours(3)}).value();
  const auto says = [&](const std::string& ca, const std::string& certificate,
                        const std::string& key) {
    return TlsContext::Create({.ca = Write("ca", ca),
                               .certificate = Write("cert", certificate),
                               .key = Write("key", key)})
        .status()
        .message();
  };
  const std::string& ca = ours->certificate();
  EXPECT_EQ(says(ca, good.certificate, good.key), "");
  EXPECT_THAT(says("", good.certificate, good.key),
              HasSubstr("/ca: expected certificates in PEM, got: nothing"));
  EXPECT_THAT(says(ca, "a certificate", good.key),
              HasSubstr("/cert: expected certificates in PEM, got: something else"));
  EXPECT_THAT(says(ca, good.certificate, good.certificate),
              HasSubstr("/key: expected a private key in PEM"));
  EXPECT_THAT(says(ca, good.certificate, other.key),
              HasSubstr("/key: expected the private key of the certificate in "));
  EXPECT_THAT(says(ca, strange.certificate, strange.key),
              HasSubstr("/cert: expected a certificate that the authority vouches for, got: "));
  EXPECT_THAT(says(ca, expired.certificate, expired.key), HasSubstr("certificate has expired"));
  EXPECT_THAT(says(ca, early.certificate, early.key), HasSubstr("certificate is not yet valid"));
  const auto gone = TlsContext::Create({.ca = "/none", .certificate = "/none", .key = "/none"});
  EXPECT_EQ(gone.status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace meshtrain::wire
