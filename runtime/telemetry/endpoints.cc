#include "runtime/telemetry/endpoints.h"

#include <httplib.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"

namespace meshtrain::telemetry {
namespace {

constexpr int kThreads = 2;
constexpr size_t kMaxQueued = 32;
constexpr size_t kMaxRequestBody = 1024;  // nobody has anything to send
constexpr time_t kSocketSeconds = 2;
constexpr size_t kRequestsPerConnection = 100;

// httplib's own pool queues without limit. This one makes the accepting thread wait, so that the
// kernel's backlog does. A task must run even at shutdown: it owns a socket, which it closes.
class BoundedPool final : public httplib::TaskQueue {
 public:
  BoundedPool() {
    for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { Work(); });
  }

  void enqueue(std::function<void()> task) override {
    {
      MutexLock lock(mutex_);
      while (!changed_.WaitFor(mutex_, {}, std::chrono::hours(1), [this]() MT_REQUIRES(mutex_) {
        return tasks_.size() < kMaxQueued;
      })) {
      }
      tasks_.push_back(std::move(task));
    }
    changed_.NotifyAll();
  }

  void shutdown() override {
    {
      MutexLock lock(mutex_);
      closing_ = true;
    }
    changed_.NotifyAll();
    threads_.clear();  // joins
  }

 private:
  void Work() {
    for (;;) {
      std::function<void()> task;
      {
        MutexLock lock(mutex_);
        while (!changed_.WaitFor(mutex_, {}, std::chrono::hours(1), [this]() MT_REQUIRES(mutex_) {
          return closing_ || !tasks_.empty();
        })) {
        }
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      changed_.NotifyAll();
      task();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ MT_GUARDED_BY(mutex_);
  bool closing_ MT_GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> threads_;  // last
};

void Answer(httplib::Response& response, int status, const std::string& body, const char* type) {
  response.status = status;
  response.set_header("Cache-Control", "no-store");
  response.set_content(body, type);
}

}  // namespace

class Endpoints::Impl {
 public:
  explicit Impl(EndpointHandlers handlers) : handlers_(std::move(handlers)) {
    server_.new_task_queue = [] { return new BoundedPool(); };
    server_.set_read_timeout(kSocketSeconds);
    server_.set_write_timeout(kSocketSeconds);
    server_.set_keep_alive_timeout(kSocketSeconds);
    server_.set_keep_alive_max_count(kRequestsPerConnection);
    server_.set_payload_max_length(kMaxRequestBody);
    server_.set_tcp_nodelay(true);
    server_.set_exception_handler(
        [](const httplib::Request&, httplib::Response& response, std::exception_ptr) {
          Answer(response, 500, "internal error\n", "text/plain");
        });
    Text("/metrics", handlers_.metrics, "text/plain; version=0.0.4; charset=utf-8");
    Text("/progress", handlers_.progress, "application/json");
    Text("/", handlers_.page, "text/html; charset=utf-8");
    Check("/healthz", handlers_.healthy);
    Check("/readyz", handlers_.ready);
  }

  // Bounded by the sockets' time-outs, though not by us.
  ~Impl() { (void)Stop(std::chrono::minutes(1)); }

  Status Start(const EndpointsOptions& options) {
    port_ = options.port == 0
                ? server_.bind_to_any_port(options.host)
                : (server_.bind_to_port(options.host, options.port) ? options.port : -1);
    if (port_ < 0) {
      return Unavailable("http endpoints: expected to listen on " + options.host + ":" +
                         std::to_string(options.port) + ", got: the address is taken or not ours");
    }
    thread_ = std::jthread([this] {
      server_.listen_after_bind();
      {
        MutexLock lock(mutex_);
        ended_ = true;
      }
      changed_.NotifyAll();
    });
    return OkStatus();
  }

  Status Stop(Duration timeout) {
    const Status late = DeadlineExceeded(
        "http endpoints: expected every request to end in time, got: some still running");
    const Duration begin = SystemClock().Monotonic();
    // httplib ignores a stop() before its loop has begun, and takes only one.
    while (thread_.joinable() && !stopped_ && !Ended(std::chrono::nanoseconds(0))) {
      if (server_.is_running()) {
        server_.stop();
        stopped_ = true;
      } else {
        if (SystemClock().Monotonic() - begin > timeout) return late;
        (void)Ended(std::chrono::milliseconds(1));
      }
    }
    if (!thread_.joinable()) return OkStatus();
    return Ended(timeout - (SystemClock().Monotonic() - begin)) ? OkStatus() : late;
  }

  int port() const { return port_; }

 private:
  // Waits for the listening thread's end.
  bool Ended(Duration timeout) {
    MutexLock lock(mutex_);
    return changed_.WaitFor(mutex_, {}, std::max(timeout, Duration(0)),
                            [this]() MT_REQUIRES(mutex_) { return ended_; });
  }

  void Text(const char* path, const std::function<std::string()>& handler, const char* type) {
    if (!handler) return;
    server_.Get(path, [&handler, type](const httplib::Request&, httplib::Response& response) {
      Answer(response, 200, handler(), type);
    });
  }

  void Check(const char* path, const std::function<bool()>& handler) {
    server_.Get(path, [&handler](const httplib::Request&, httplib::Response& response) {
      const bool good = !handler || handler();
      Answer(response, good ? 200 : 503, good ? "ok\n" : "no\n", "text/plain");
    });
  }

  const EndpointHandlers handlers_;
  httplib::Server server_;
  int port_ = -1;
  bool stopped_ = false;
  Mutex mutex_;
  CondVar changed_;
  bool ended_ MT_GUARDED_BY(mutex_) = false;
  std::jthread thread_;  // last
};

Endpoints::Endpoints(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Endpoints::~Endpoints() = default;

Result<std::unique_ptr<Endpoints>> Endpoints::Start(const EndpointsOptions& options,
                                                    EndpointHandlers handlers) {
  auto impl = std::make_unique<Impl>(std::move(handlers));
  MT_RETURN_IF_ERROR(impl->Start(options));
  return std::unique_ptr<Endpoints>(new Endpoints(std::move(impl)));
}

int Endpoints::port() const { return impl_->port(); }
Status Endpoints::Stop(Duration timeout) { return impl_->Stop(timeout); }

}  // namespace meshtrain::telemetry
