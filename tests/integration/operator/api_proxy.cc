#include "tests/integration/operator/api_proxy.h"

#include <httplib.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <future>

namespace meshtrain::testing {
namespace {

httplib::Headers Carried(const httplib::Request& request) {
  httplib::Headers out;
  for (const char* name : {"Accept", "Accept-Encoding", "Authorization", "User-Agent"}) {
    if (request.has_header(name)) out.emplace(name, request.get_header_value(name));
  }
  return out;
}

// Whether a watch's target is of `plural`; of "" none is.
bool IsOf(const std::string& target, const std::string& plural) {
  const size_t query = target.find('?');
  return !plural.empty() && target.substr(0, query).ends_with("/" + plural);
}

// The head goes out, the body breaks off, the connection closes.
void BreakOff(httplib::Response& response) {
  response.status = 200;
  response.set_content_provider(64, "application/json",
                                [](size_t, size_t, httplib::DataSink&) { return false; });
}

void CopyAnswer(const httplib::Response& from, std::string body, httplib::Response& to) {
  to.status = from.status;
  if (from.has_header("Retry-After")) {
    to.set_header("Retry-After", from.get_header_value("Retry-After"));
  }
  to.set_content(std::move(body), from.get_header_value("Content-Type", 0));
}

}  // namespace

// One watch: a thread reads from the API server into `chunks`, the handler's provider writes them
// on.
struct ApiProxy::Stream {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::string> chunks;
  bool ended = false, cut = false, held = false;
  std::string target;
  std::unique_ptr<httplib::Client> client;
  std::thread reader;

  ~Stream() {
    client->stop();
    if (reader.joinable()) reader.join();
  }
};

bool ApiProxy::Call::IsWrite() const {
  return method != "GET" && target.find("/leases") == std::string::npos &&
         target.find("/events") == std::string::npos;
}

Result<std::unique_ptr<ApiProxy>> ApiProxy::Start(const kube::ClientConfig& config) {
  auto proxy = std::unique_ptr<ApiProxy>(new ApiProxy);
  proxy->config_ = config;
  const std::string pki = config.ca_file.substr(0, config.ca_file.rfind('/'));
  auto server = std::make_unique<httplib::SSLServer>((pki + "/apiserver.crt").c_str(),
                                                     (pki + "/apiserver.key").c_str());
  if (!server->is_valid()) {
    return Unavailable("proxy: expected " + pki + "/apiserver.crt and .key, got: none");
  }
  proxy->server_ = std::move(server);
  httplib::Server& http = *proxy->server_;
  http.new_task_queue = [] { return new httplib::ThreadPool(96); };
  http.set_tcp_nodelay(true);
  http.set_keep_alive_max_count(1 << 30);
  http.set_keep_alive_timeout(60);
  const auto handle = [p = proxy.get()](const httplib::Request& in, httplib::Response& out) {
    p->Handle(in, out);
  };
  http.Get(".*", handle)
      .Post(".*", handle)
      .Put(".*", handle)
      .Patch(".*", handle)
      .Delete(".*", handle);
  proxy->port_ = http.bind_to_any_port("127.0.0.1");
  if (proxy->port_ <= 0) return Unavailable("proxy: expected a free port, got: none");
  proxy->thread_ = std::jthread([&http] { http.listen_after_bind(); });
  return proxy;
}

ApiProxy::~ApiProxy() {
  if (!server_) return;
  LetWritesGo(true);
  CutWatches();
  server_->stop();
}

std::unique_ptr<httplib::Client> ApiProxy::NewClient() const {
  auto client = std::make_unique<httplib::Client>(config_.server);
  client->set_ca_cert_path(config_.ca_file);
  client->enable_server_certificate_verification(true);
  client->set_keep_alive(true);
  client->set_tcp_nodelay(true);
  client->set_url_encode(false);
  client->set_decompress(false);
  client->set_read_timeout(std::chrono::seconds(60));
  return client;
}

void ApiProxy::SetHook(Hook hook) {
  const std::unique_lock lock(hook_mutex_);
  hook_ = std::move(hook);
}

ApiProxy::Verdict ApiProxy::AskHook(const Call& call) {
  const std::shared_lock lock(hook_mutex_);
  return hook_ && call.IsWrite() ? hook_(call) : Verdict::kPass;
}

void ApiProxy::HoldWrites() {
  const std::lock_guard lock(mutex_);
  hold_ = true;
}

void ApiProxy::LetWritesGo(bool lose) {
  const std::lock_guard lock(mutex_);
  hold_ = false;
  lose_held_ = lose;
  changed_.notify_all();
}

int ApiProxy::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

std::vector<ApiProxy::Call> ApiProxy::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

int64_t ApiProxy::Count(const std::function<bool(const Call&)>& which) const {
  const std::lock_guard lock(mutex_);
  return std::count_if(calls_.begin(), calls_.end(), which);
}

void ApiProxy::Handle(const httplib::Request& request, httplib::Response& response) {
  Call call{.method = request.method,
            .target = request.target,
            .body = request.body,
            .at = std::chrono::steady_clock::now()};
  if (call.IsWatch()) return HandleWatch(request, response);
  std::unique_ptr<httplib::Client> client;
  {
    std::unique_lock lock(mutex_);
    if (call.IsWrite()) {
      ++writes_;
      if (hold_) {
        ++held_;
        changed_.wait(lock, [&] { return !hold_; });
        --held_;
        if (lose_held_) return BreakOff(response);
      }
    }
    if (!idle_.empty()) {
      client = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (AskHook(call) == Verdict::kLose) return BreakOff(response);
  if (!client) client = NewClient();

  httplib::Request out;
  out.method = request.method;
  out.path = request.target;
  out.headers = Carried(request);
  out.body = request.body;
  if (!out.body.empty()) {
    out.headers.emplace("Content-Type", request.get_header_value("Content-Type"));
  }
  httplib::Result result = client->send(out);
  if (!result) return BreakOff(response);
  call.status = result->status;
  const Verdict verdict = AskHook(call);
  {
    const std::lock_guard lock(mutex_);
    calls_.push_back(call);
    idle_.push_back(std::move(client));
  }
  if (verdict == Verdict::kLose) return BreakOff(response);
  CopyAnswer(*result, std::move(result->body), response);
}

void ApiProxy::HandleWatch(const httplib::Request& request, httplib::Response& response) {
  if (refuse_watches_) return BreakOff(response);
  const auto came = std::chrono::steady_clock::now();
  auto stream = std::make_shared<Stream>();
  stream->target = request.target;
  stream->client = NewClient();
  stream->client->set_read_timeout(std::chrono::seconds(700));
  const auto head = std::make_shared<std::promise<httplib::Response>>();
  std::future<httplib::Response> answered = head->get_future();
  stream->reader =
      std::thread([s = stream.get(), head, target = request.target, headers = Carried(request)] {
        bool told = false;
        const auto result = s->client->Get(
            target, headers,
            [&](const httplib::Response& answer) {
              told = true;
              head->set_value(answer);
              return true;
            },
            [&](const char* data, size_t size) {
              const std::lock_guard lock(s->mutex);
              s->chunks.emplace_back(data, size);
              s->changed.notify_all();
              return !s->cut;
            });
        if (!told) head->set_value({});
        const std::lock_guard lock(s->mutex);
        s->ended = true;
        s->changed.notify_all();
      });
  const httplib::Response answer = answered.get();
  {
    const std::lock_guard lock(mutex_);
    calls_.push_back(
        {.method = "GET", .target = request.target, .status = answer.status, .at = came});
    stream->held = IsOf(stream->target, held_watches_);
    std::erase_if(streams_, [](const auto& other) { return other.expired(); });
    streams_.push_back(stream);
  }
  if (answer.status <= 0) return BreakOff(response);
  response.status = answer.status;
  response.set_chunked_content_provider(
      answer.get_header_value("Content-Type", 0), [stream](size_t, httplib::DataSink& sink) {
        std::unique_lock lock(stream->mutex);
        stream->changed.wait_for(lock, std::chrono::milliseconds(100), [&] {
          return (!stream->chunks.empty() && !stream->held) || stream->ended || stream->cut;
        });
        if (stream->cut || !sink.is_writable()) return false;
        if (stream->held) return true;
        if (!stream->chunks.empty()) {
          const std::string chunk = std::move(stream->chunks.front());
          stream->chunks.pop_front();
          lock.unlock();
          return sink.write(chunk.data(), chunk.size());
        }
        if (stream->ended) sink.done();
        return true;
      });
}

int ApiProxy::open_watches() const {
  const std::lock_guard lock(mutex_);
  int open = 0;
  for (const auto& weak : streams_) {
    const auto stream = weak.lock();
    if (!stream) continue;
    const std::lock_guard stream_lock(stream->mutex);
    open += !stream->ended && !stream->cut;
  }
  return open;
}

void ApiProxy::HoldWatches(const std::string& plural) {
  const std::lock_guard lock(mutex_);
  held_watches_ = plural;
  for (const auto& weak : streams_) {
    const auto stream = weak.lock();
    if (!stream) continue;
    const std::lock_guard stream_lock(stream->mutex);
    stream->held = IsOf(stream->target, plural);
    stream->changed.notify_all();
  }
}

void ApiProxy::LetWatchesGo() { HoldWatches(""); }

int ApiProxy::CutWatches() {
  const std::lock_guard lock(mutex_);
  int cut = 0;
  for (const auto& weak : streams_) {
    const auto stream = weak.lock();
    if (!stream) continue;
    const std::lock_guard stream_lock(stream->mutex);
    if (stream->ended || stream->cut) continue;
    stream->cut = true;
    stream->changed.notify_all();
    ++cut;
  }
  streams_.clear();
  return cut;
}

}  // namespace meshtrain::testing
