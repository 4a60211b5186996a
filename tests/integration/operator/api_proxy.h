// Stands between an operator and the API server, over TLS on both sides, and does what networks and
// crashes do: it counts requests, calls the test between a request and its answer, loses either,
// holds writes, cuts watches.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "operator/kube/config.h"
#include "runtime/base/status.h"

namespace httplib {
class Server;
class Client;
struct Request;
struct Response;
}  // namespace httplib

namespace meshtrain::testing {

// Thread-safe. Ends with the object; processes that speak through it should have ended before.
class ApiProxy {
 public:
  struct Call {
    std::string method, target;  // target: path and query
    std::string body;
    int status = 0;                              // of the answer; 0 while there is none
    std::chrono::steady_clock::time_point at{};  // when it came in
    // A write that an operator decides on; the lease and events are beside the point.
    bool IsWrite() const;
    bool IsWatch() const { return target.find("watch=") != std::string::npos; }
    bool OnStatus() const { return target.find("/status") != std::string::npos; }
    bool OnPods() const { return target.find("/pods") != std::string::npos; }
  };
  enum class Verdict { kPass, kLose };
  // Called for each write: before it is sent on (call.status is 0; kLose: it never arrives) and
  // once it is answered (kLose: the answer never arrives). Called from several threads at once.
  using Hook = std::function<Verdict(const Call& call)>;

  // `config` tells the server and its CA; the proxy shows the API server's own certificate.
  static Result<std::unique_ptr<ApiProxy>> Start(const kube::ClientConfig& config);
  ~ApiProxy();

  std::string url() const { return "https://127.0.0.1:" + std::to_string(port_); }
  // Returns when no call of the hook before runs any more: what that one borrowed may go then. Not
  // from within a hook.
  void SetHook(Hook hook);
  int open_watches() const;
  // Ends every watch in the middle of its stream; returns how many there were.
  int CutWatches();
  // From now on watches are refused (false: served again).
  void RefuseWatches(bool refuse) { refuse_watches_ = refuse; }
  // From now on nothing that the server tells on watches of `plural` is passed on; they stay open.
  void HoldWatches(const std::string& plural);
  void LetWatchesGo();
  // Writes are held before they are sent on. Let go, they arrive, or (`lose`) never do.
  void HoldWrites();
  void LetWritesGo(bool lose);
  int held() const;

  // All requests that were answered, in the order of their answers.
  std::vector<Call> calls() const;
  // Writes that came in since the beginning, answered or not.
  int64_t writes() const { return writes_; }
  int64_t Count(const std::function<bool(const Call&)>& which) const;

 private:
  struct Stream;

  ApiProxy() = default;
  Verdict AskHook(const Call& call);
  void Handle(const httplib::Request& request, httplib::Response& response);
  void HandleWatch(const httplib::Request& request, httplib::Response& response);
  std::unique_ptr<httplib::Client> NewClient() const;

  kube::ClientConfig config_;
  std::unique_ptr<httplib::Server> server_;
  int port_ = 0;
  std::jthread thread_;
  std::atomic<bool> refuse_watches_{false};
  std::atomic<int64_t> writes_{0};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_mutex hook_mutex_;  // shared while the hook runs
  Hook hook_;
  std::vector<Call> calls_;
  std::vector<std::unique_ptr<httplib::Client>> idle_;
  std::list<std::weak_ptr<Stream>> streams_;
  bool hold_ = false, lose_held_ = false;
  int held_ = 0;
  std::string held_watches_;  // a plural; "" = none
};

}  // namespace meshtrain::testing
