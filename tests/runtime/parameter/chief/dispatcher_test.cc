// Which workers count as there, by the dispatcher.
#include "runtime/parameter/chief/dispatcher.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <functional>

#include "runtime/parameter/chief/repeat_log.h"
#include "tests/runtime/parameter/server/held_server.h"
#include "tests/runtime/parameter/worker/held_worker.h"

namespace meshtrain::parameter {
namespace {

using mesh::Tensor;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Who logs a line waits until this goes: stderr is a pipe that is full.
class HeldLog {
 public:
  HeldLog() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read_end_ = ends[0];
    EXPECT_EQ(::fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
    const std::string page(4096, '.');
    while (::write(ends[1], page.data(), page.size()) > 0) {
    }
    EXPECT_EQ(errno, EAGAIN);
    EXPECT_EQ(::fcntl(ends[1], F_SETFL, 0), 0);
    stderr_ = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    EXPECT_GE(stderr_, 0);
    EXPECT_GE(::dup2(ends[1], STDERR_FILENO), 0);
    ::close(ends[1]);
  }
  ~HeldLog() {
    EXPECT_GE(::dup2(stderr_, STDERR_FILENO), 0);
    ::close(stderr_);
    // Ends when the last one that waits has written its line.
    char bytes[4096];
    while (::read(read_end_, bytes, sizeof bytes) > 0) {
    }
    ::close(read_end_);
  }
  HeldLog(const HeldLog&) = delete;
  HeldLog& operator=(const HeldLog&) = delete;

 private:
  int read_end_ = -1, stderr_ = -1;
};

class DispatcherTest : public ::testing::Test {
 protected:
  // `return_timeout`: short, for the tests that look what comes of it.
  std::unique_ptr<Dispatcher> Dispatch(std::vector<std::string> workers, Duration return_timeout) {
    auto dispatcher = Must(Dispatcher::Create({.workers = std::move(workers),
                                               .identity = TestIdentity(),
                                               .term = 1,
                                               .start_timeout = seconds(60),
                                               .return_timeout = return_timeout,
                                               .lost_after = seconds(10)},
                                              servers_.get()));
    entry_ = dispatcher->AddEntry(WorkerValue{"v", Tensor::Scalar<int64_t>(1)});
    return dispatcher;
  }
  static bool WaitUntil(const std::function<bool()>& there, Duration timeout) {
    const Duration until = SystemClock().Monotonic() + timeout;
    while (!there()) {
      if (SystemClock().Monotonic() > until) return false;
      SystemClock().SleepFor(milliseconds(5), {});
    }
    return true;
  }
  static bool WaitForReady(Dispatcher& dispatcher, int workers, Duration timeout = seconds(60)) {
    return WaitUntil([&] { return dispatcher.stats().workers_ready == workers; }, timeout);
  }

  // One server, which answers every ping.
  void Serve() {
    server_ = std::make_unique<HeldServer>();
    servers_ = Must(ServerGroup::Create({server_->address()}, TestIdentity(), seconds(5)));
    const Status begun = servers_->SetUp({.term = 1}, seconds(60), {});
    ASSERT_TRUE(begun.ok()) << begun.ToString();
  }

  std::unique_ptr<HeldServer> server_;
  std::unique_ptr<ServerGroup> servers_ = Must(ServerGroup::Create({}, TestIdentity(), seconds(5)));
  int64_t entry_ = -1;
};

// It counted as there before it was ready. When the only other one went meanwhile, nobody was, from
// then on and whatever the first one did, and the job's steps ended for want of a worker.
TEST_F(DispatcherTest, AWorkerThatComesWhileAnotherGoesIsThere) {
  HeldWorker comes(/*holds_set_up=*/true);
  auto goes = std::make_unique<HeldWorker>();
  const auto dispatcher = Dispatch({comes.address(), goes->address()}, milliseconds(300));
  ASSERT_TRUE(WaitForReady(*dispatcher, 1));
  {
    // Between its answer and the next thing that is done for it lies a line of the log.
    const HeldLog held;
    ASSERT_TRUE(comes.EndSetUp());
    WaitForReady(*dispatcher, 2, seconds(1));
    goes.reset();
    ASSERT_TRUE(WaitUntil([&] { return dispatcher->stats().workers_lost == 1; }, seconds(60)));
  }
  ASSERT_TRUE(WaitForReady(*dispatcher, 1));
  const auto step = Must(dispatcher->Submit({entry_}, {}, seconds(60), {}));
  ASSERT_TRUE(comes.WaitForRun());
  SystemClock().SleepFor(seconds(1), {});  // longer than a worker is waited for
  ASSERT_TRUE(comes.EndRun());
  const auto outcome = dispatcher->Wait(*step, seconds(60), {});
  ASSERT_TRUE(outcome.ok()) << outcome.status().ToString();
  EXPECT_EQ(outcome->worker, 0);
  EXPECT_TRUE(dispatcher->Join(seconds(60), {}).ok());
}

// It went without having been lost, so nobody was missed, and the steps waited for ever.
TEST_F(DispatcherTest, AWorkerThatRefusedAnEntryAndWentIsMissed) {
  auto worker = std::make_unique<HeldWorker>();
  const auto dispatcher = Dispatch({worker->address()}, seconds(1));
  ASSERT_TRUE(WaitForReady(*dispatcher, 1));
  worker->Refuse(InvalidArgument("no kernel"));
  entry_ = dispatcher->AddEntry(WorkerValue{"w", Tensor::Scalar<int64_t>(2)});
  const auto step = Must(dispatcher->Submit({entry_}, {}, seconds(60), {}));
  EXPECT_EQ(dispatcher->Wait(*step, seconds(60), {}).status().code(), StatusCode::kCancelled);
  worker.reset();
  EXPECT_EQ(dispatcher->Join(seconds(60), {}).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(dispatcher->Submit({entry_}, {}, seconds(60), {}).ok());
  const Status missed = dispatcher->Join(seconds(60), {});
  EXPECT_EQ(missed.code(), StatusCode::kUnavailable) << missed.ToString();
  EXPECT_NE(missed.message().find("expected a worker within 1 s, got: worker-0: "),
            std::string::npos)
      << missed.ToString();
}

// It was taken for one that was lost, and set up until its time was over.
TEST_F(DispatcherTest, AWorkerThatRefusesWhatIsWrongForTheJobEndsTheSteps) {
  HeldWorker worker;
  const auto dispatcher = Dispatch({worker.address()}, seconds(60));
  ASSERT_TRUE(WaitForReady(*dispatcher, 1));
  const Status small =
      FailedPrecondition("step a: expected to need at most 1 bytes").From(Origin::kManifest);
  worker.Refuse(small);
  worker.RefuseSetUp(small);
  entry_ = dispatcher->AddEntry(WorkerValue{"w", Tensor::Scalar<int64_t>(2)});
  ASSERT_TRUE(dispatcher->Submit({entry_}, {}, seconds(60), {}).ok());
  const Status told = small.At("worker-0: " + worker.address());
  const Status loaded = dispatcher->Join(seconds(20), {});
  EXPECT_EQ(loaded, told) << loaded.ToString();
  EXPECT_EQ(loaded.origin(), Origin::kManifest);
  // It is set up anew now: before the step comes, or because it did.
  const auto again = dispatcher->Submit({entry_}, {}, seconds(60), {});
  const Status set_up = again.ok() ? dispatcher->Join(seconds(20), {}) : again.status();
  EXPECT_EQ(set_up, told) << set_up.ToString();
  EXPECT_EQ(dispatcher->stats().workers_lost, 1);
}

// "worker does not answer", with its answer.
TEST_F(DispatcherTest, AWorkerThatRefusesToBeSetUpIsSaidToRefuse) {
  HeldWorker worker;
  worker.RefuseSetUp(FailedPrecondition("expected an incarnation after 7, got: 1"));
  testing::internal::CaptureStderr();
  {
    const auto dispatcher = Dispatch({worker.address()}, seconds(60));
    SystemClock().SleepFor(RepeatLog::kFirst + seconds(1), {});
    worker.RefuseSetUp(OkStatus());
    EXPECT_TRUE(WaitForReady(*dispatcher, 1));
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("worker refuses to be set up"), std::string::npos) << log;
  EXPECT_EQ(log.find("worker does not answer"), std::string::npos) << log;
}

// The log said that it is back, and never that it was away.
TEST_F(DispatcherTest, AServerThatAWorkerDoesNotReachIsSaidToBeAway) {
  Serve();
  HeldWorker worker;
  const auto dispatcher = Dispatch({worker.address()}, seconds(60));
  ASSERT_TRUE(WaitForReady(*dispatcher, 1));
  ASSERT_TRUE(dispatcher->Submit({entry_}, {}, seconds(60), {}).ok());
  testing::internal::CaptureStderr();
  const bool returned = worker.EndRun({.status = Unavailable("no route to ps-0"),
                                       .cause = RunReply::Cause::kServerAway,
                                       .server = 0});
  const bool ended = returned && worker.EndRun();
  const Status joined = dispatcher->Join(seconds(60), {});
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(ended && joined.ok()) << joined.ToString();
  const size_t away = log.find("parameter server is away");
  ASSERT_NE(away, std::string::npos) << log;
  EXPECT_NE(log.find("worker-0: no route to ps-0", away), std::string::npos) << log;
  EXPECT_NE(log.find("parameter server is back", away), std::string::npos) << log;
}

}  // namespace
}  // namespace meshtrain::parameter
