#include "operator/kube/http_client.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "operator/kube/bounded_http.h"
#include "operator/kube/credentials.h"
#include "operator/kube/json_slice.h"
#include "operator/kube/pacer.h"
#include "runtime/base/mutex.h"
#include "runtime/base/text.h"

namespace meshtrain::kube {
namespace {

using nlohmann::json;

constexpr Duration kConnectTimeout = std::chrono::seconds(10);
constexpr size_t kMaxErrorBody = 64 << 10;
constexpr size_t kMaxErrorMessage = 4 << 10;  // of it, as far as it is told
constexpr int kMaxThrottledTries = 10;

// ---- Server address
// ------------------------------------------------------------------------------------------------

struct Endpoint {
  bool tls = true;
  std::string host;  // without brackets
  int port = 443;
  std::string path;  // before every request's path; no slash at its end
};

Result<Endpoint> ParseEndpoint(std::string_view url, std::string_view where) {
  const auto refuse = [&] {
    return InvalidArgument(std::string(where) +
                           ": expected http[s]://host[:port][/path], got: " + Excerpt(url));
  };
  Endpoint out;
  std::string_view rest = url;
  if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
  } else if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
    out.tls = false;
    out.port = 80;
  } else {
    return refuse();
  }
  const size_t slash = rest.find('/');
  if (slash != std::string_view::npos) {
    out.path = std::string(rest.substr(slash));
    while (out.path.ends_with('/')) out.path.pop_back();
    rest = rest.substr(0, slash);
  }
  std::string_view port;
  if (rest.starts_with('[')) {
    const size_t close = rest.find(']');
    if (close == std::string_view::npos) return refuse();
    out.host = std::string(rest.substr(1, close - 1));
    rest.remove_prefix(close + 1);
    if (!rest.empty() && rest.front() != ':') return refuse();
    port = rest.empty() ? rest : rest.substr(1);
  } else {
    const size_t colon = rest.find(':');
    out.host = std::string(rest.substr(0, colon));
    if (colon != std::string_view::npos) port = rest.substr(colon + 1);
  }
  if (!port.empty()) {
    const auto number = ParseInt(port);
    if (!number || *number < 1 || *number > 65535) return refuse();
    out.port = static_cast<int>(*number);
  }
  if (out.host.empty()) return refuse();
  return out;
}

// httplib reads certificates and keys from files. A memory file gives it one without writing
// secrets to a disk.
class MemoryFile {
 public:
  MemoryFile() = default;
  ~MemoryFile() {
    if (fd_ >= 0) close(fd_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  // Call once.
  Status Write(std::string_view text) {
    fd_ = memfd_create("meshtrain", MFD_CLOEXEC);
    if (fd_ < 0) return Unavailable("memfd_create: expected a memory file, got: an error");
    while (!text.empty()) {
      const ssize_t n = write(fd_, text.data(), text.size());
      if (n <= 0) return Unavailable("memory file: expected to write it, got: an error");
      text.remove_prefix(static_cast<size_t>(n));
    }
    return OkStatus();
  }
  // "" before Write.
  std::string path() const { return fd_ < 0 ? "" : "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_ = -1;
};

// ---- One connection
// ------------------------------------------------------------------------------------------------

struct Connection {
  MemoryFile certificate, key;
  std::unique_ptr<httplib::ClientImpl> http;
  Allowance allowance;
  Credential credential;  // whose certificate it uses
};

// kCanceled where `stop` came first. The library ignores a stop() before it has a socket, so one
// that is there already is not left to it.
httplib::Result SendUntil(const std::stop_token& stop, httplib::ClientImpl& http,
                          httplib::Request& request) {
  std::stop_callback on_stop(stop, [&] { http.stop(); });
  if (stop.stop_requested()) return httplib::Result(nullptr, httplib::Error::Canceled);
  return http.send(request);
}

class HttpClient;

std::string Escape(std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (unsigned char c : text) {
    if (std::isalnum(c) || c == '-' || c == '_' || c == '.' || c == '~') {
      out += static_cast<char>(c);
    } else {
      out += '%';
      out += kHex[c >> 4];
      out += kHex[c & 15];
    }
  }
  return out;
}

void AddParameter(std::string& path, std::string_view name, std::string_view value) {
  if (value.empty()) return;
  path += path.find('?') == std::string::npos ? '?' : '&';
  path += name;
  path += '=';
  path += Escape(value);
}

Status StatusFromTransport(httplib::Error error, std::string_view what) {
  return Unavailable(std::string(what) +
                     ": expected an answer from the API server, got: " + httplib::to_string(error));
}

Status PastLimit(std::string_view what, size_t most) {
  return DataLoss(std::string(what) + ": expected a head of at most " +
                  std::to_string(kMaxHead >> 10) + " KiB and a body of at most " +
                  std::to_string(most >> 20) + " MiB, got: more");
}

// Retry-After in seconds; `fallback` without one. (The API server never sends a date.)
Duration RetryAfter(const httplib::Headers& headers, Duration fallback) {
  const auto it = headers.find("Retry-After");
  if (it == headers.end()) return fallback;
  const auto seconds = ParseInt(Trim(it->second));
  if (!seconds || *seconds < 0) return fallback;
  return std::chrono::seconds(std::min<int64_t>(*seconds, 60));
}

// A little more than asked for, so that those who were turned away together do not come back
// together.
Duration Jittered(Duration d) {
  thread_local std::minstd_rand random(std::random_device{}());
  return Duration(static_cast<int64_t>(static_cast<double>(d.count()) *
                                       std::uniform_real_distribution<>(1.0, 1.25)(random)));
}

// ---- The client
// ----------------------------------------------------------------------------------------------------

struct Answer {
  int status = 0;
  std::string body;
  Duration retry_after{};
  bool throttled = false;
};

class HttpClient : public Client {
 public:
  HttpClient(ClientConfig config, Endpoint endpoint, std::optional<Endpoint> proxy,
             HttpClientOptions options, Clock& clock)
      : config_(std::move(config)),
        endpoint_(std::move(endpoint)),
        proxy_(std::move(proxy)),
        options_(std::move(options)),
        clock_(clock),
        credentials_(config_, clock),
        pacer_(clock, options_.connections) {}

  Status Prepare() {
    if (!config_.ca_data.empty()) MT_RETURN_IF_ERROR(ca_.Write(config_.ca_data));
    return OkStatus();
  }

  Result<std::string> Get(const Resource& resource, std::string_view ns, std::string_view name,
                          const CallOptions& call) override {
    return Call("GET", PathOf(resource, ns, name), {}, {}, call);
  }

  Result<std::string> List(const Resource& resource, const ListOptions& options,
                           const std::function<void(std::string_view item)>& on_item,
                           const std::function<void()>& on_restart,
                           const CallOptions& call) override {
    std::string next;
    int chunk = options.chunk, pages = 0, short_pages = 0, restarts = 0;
    while (true) {
      std::string path = PathOf(resource, options.ns);
      const std::string what = "GET " + path;
      AddParameter(path, "labelSelector", options.label_selector);
      AddParameter(path, "fieldSelector", options.field_selector);
      if (chunk > 0) AddParameter(path, "limit", std::to_string(chunk));
      AddParameter(path, "continue", next);
      Result<std::string> page = Call("GET", path, {}, {}, call, kMaxPage);
      if (!page.ok()) {
        const StatusCode code = page.status().code();
        const bool too_large = code == StatusCode::kDataLoss && chunk > 1;
        const bool expired = code == StatusCode::kOutOfRange && !next.empty();
        if (too_large) {
          chunk = std::max(1, chunk / 8);
          continue;
        }
        if (!expired || ++restarts > 2) return page.status();
        next.clear();
        pages = short_pages = 0;
        on_restart();
        continue;
      }
      const std::string_view items = Slice(*page, {"items"});
      int found = 0;
      // Go writes an empty list as null.
      const bool whole = items == "null" || ForEachElement(items, [&](std::string_view item) {
                           on_item(item);
                           ++found;
                           return true;
                         });
      const std::string version(SliceString(*page, {"metadata", "resourceVersion"}));
      if (!whole || version.empty()) {
        return Unavailable(path + ": expected a list, got: " + Excerpt(*page));
      }
      next = std::string(SliceString(*page, {"metadata", "continue"}));
      if (next.empty()) return version;
      // A server may leave a page short, but does not do so for ever.
      short_pages += found < chunk ? 1 : 0;
      if (++pages >= kMaxPages || short_pages > kMaxShortPages) {
        return DataLoss(what + ": expected a list that ends, got: " + std::to_string(pages) +
                        " pages, " + std::to_string(short_pages) + " of them short, and more");
      }
    }
  }

  Result<std::string> Version(const Resource& resource, std::string_view ns,
                              const CallOptions& call) override {
    std::string path = PathOf(resource, ns);
    AddParameter(path, "limit", "1");
    MT_ASSIGN_OR_RETURN(const std::string page, Call("GET", path, {}, {}, call));
    std::string version(SliceString(page, {"metadata", "resourceVersion"}));
    if (!version.empty()) return version;
    return Unavailable(path + ": expected a list, got: " + Excerpt(page));
  }

  Status Watch(const Resource& resource, const WatchOptions& options,
               const std::function<void(WatchEventType type, std::string_view resource_version,
                                        std::string_view object)>& on_event,
               std::stop_token stop) override;

  Result<std::string> Create(const Resource& resource, std::string_view ns, std::string_view body,
                             const CallOptions& call) override {
    return Call("POST", PathOf(resource, ns) + (call.dry_run ? "?dryRun=All" : ""),
                "application/json", body, call);
  }

  Result<std::string> Update(const Resource& resource, std::string_view ns, std::string_view name,
                             std::string_view body, const CallOptions& call) override {
    return Call("PUT", PathOf(resource, ns, name), "application/json", body, call);
  }

  Result<std::string> Patch(const Resource& resource, std::string_view ns, std::string_view name,
                            std::string_view subresource, PatchType type, std::string_view body,
                            const CallOptions& call) override {
    const char* content_type = type == PatchType::kMerge ? "application/merge-patch+json"
                               : type == PatchType::kJson
                                   ? "application/json-patch+json"
                                   : "application/strategic-merge-patch+json";
    return Call("PATCH", PathOf(resource, ns, name, subresource), content_type, body, call);
  }

  Result<std::string> Delete(const Resource& resource, std::string_view ns, std::string_view name,
                             const DeleteOptions& options, const CallOptions& call) override {
    json body = {{"kind", "DeleteOptions"},
                 {"apiVersion", "v1"},
                 {"propagationPolicy", options.propagation}};
    if (options.grace_seconds) body["gracePeriodSeconds"] = *options.grace_seconds;
    if (!options.uid.empty()) body["preconditions"]["uid"] = options.uid;
    if (!options.resource_version.empty()) {
      body["preconditions"]["resourceVersion"] = options.resource_version;
    }
    return Call("DELETE", PathOf(resource, ns, name), "application/json", body.dump(), call);
  }

 private:
  Result<std::unique_ptr<Connection>> Connect(const Credential& credential) const;
  Result<std::unique_ptr<Connection>> TakeConnection(const Credential& credential);
  void GiveBack(std::unique_ptr<Connection> connection);
  Result<Answer> SendOnce(std::string_view verb, const std::string& path,
                          std::string_view content_type, std::string_view body,
                          const CallOptions& call, Duration deadline, size_t most, bool& refused);
  // `most`: bytes of the answer's body.
  Result<std::string> Call(std::string_view verb, const std::string& path,
                           std::string_view content_type, std::string_view body,
                           const CallOptions& call, size_t most = kMaxObject);
  httplib::Request MakeRequest(std::string_view verb, const std::string& path,
                               const Credential& credential) const;

  const ClientConfig config_;
  const Endpoint endpoint_;
  const std::optional<Endpoint> proxy_;
  const HttpClientOptions options_;
  Clock& clock_;
  MemoryFile ca_;
  Credentials credentials_;
  Pacer pacer_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Connection>> idle_ MT_GUARDED_BY(mutex_);
};

// The first address of a host, as text; "" when it has none.
std::string ResolveAddress(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0 || found == nullptr) return "";
  char text[NI_MAXHOST] = "";
  getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  freeaddrinfo(found);
  return text;
}

Result<std::unique_ptr<Connection>> HttpClient::Connect(const Credential& credential) const {
  auto connection = std::make_unique<Connection>();
  connection->credential = credential;
  // tls-server-name: the certificate is checked against (and SNI carries) the host we name, so we
  // name that one and map it to the address of the real host.
  const bool renamed = endpoint_.tls && !config_.tls_server_name.empty();
  const std::string host = renamed ? config_.tls_server_name : endpoint_.host;
  if (endpoint_.tls) {
    if (!credential.certificate.empty()) {
      MT_RETURN_IF_ERROR(connection->certificate.Write(credential.certificate));
      MT_RETURN_IF_ERROR(connection->key.Write(credential.key));
    }
    connection->http = NewTlsConnection(host, endpoint_.port, connection->certificate.path(),
                                        connection->key.path(), connection->allowance, clock_);
    connection->http->enable_server_certificate_verification(!config_.insecure_skip_tls_verify);
    const std::string ca = config_.ca_file.empty() ? ca_.path() : config_.ca_file;
    if (!ca.empty()) connection->http->set_ca_cert_path(ca);
  } else {
    connection->http = NewPlainConnection(host, endpoint_.port, connection->allowance, clock_);
  }
  httplib::ClientImpl& http = *connection->http;
  if (!http.is_valid()) {
    return InvalidArgument(
        "client certificate and key: expected a PEM pair that belongs together, got: something "
        "else");
  }
  if (renamed) {
    const std::string address = ResolveAddress(endpoint_.host);
    if (address.empty()) return Unavailable("cannot resolve " + endpoint_.host);
    http.set_hostname_addr_map({{host, address}});
  }
  if (proxy_) http.set_proxy(proxy_->host, proxy_->port);
  http.set_keep_alive(true);
  http.set_tcp_nodelay(true);
  http.set_url_encode(false);
  http.set_follow_location(false);
  http.set_decompress(false);
  http.set_connection_timeout(kConnectTimeout);
  http.set_write_timeout(std::chrono::seconds(30));
  // A peer that vanished without a word is noticed in about a minute, even on a silent watch.
  http.set_socket_options([](socket_t socket) {
    const int on = 1, idle = 30, interval = 10, count = 3;
    setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  });
  return connection;
}

Result<std::unique_ptr<Connection>> HttpClient::TakeConnection(const Credential& credential) {
  {
    MutexLock lock(mutex_);
    while (!idle_.empty()) {
      std::unique_ptr<Connection> last = std::move(idle_.back());  // the warmest
      idle_.pop_back();
      const bool same = last->credential.certificate == credential.certificate &&
                        last->credential.key == credential.key;
      if (same) return last;
    }
  }
  return Connect(credential);
}

void HttpClient::GiveBack(std::unique_ptr<Connection> connection) {
  MutexLock lock(mutex_);
  idle_.push_back(std::move(connection));
}

httplib::Request HttpClient::MakeRequest(std::string_view verb, const std::string& path,
                                         const Credential& credential) const {
  httplib::Request request;
  request.method = verb;
  request.path = endpoint_.path + path;
  request.headers = {{"Accept", "application/json"},
                     {"Accept-Encoding", "identity"},
                     {"User-Agent", options_.user_agent}};
  if (!credential.authorization.empty()) {
    request.headers.emplace("Authorization", credential.authorization);
  }
  return request;
}

Result<Answer> HttpClient::SendOnce(std::string_view verb, const std::string& path,
                                    std::string_view content_type, std::string_view body,
                                    const CallOptions& call, Duration deadline, size_t most,
                                    bool& refused) {
  MT_ASSIGN_OR_RETURN(const Credential credential, credentials_.Current());
  MT_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection, TakeConnection(credential));
  httplib::Request request = MakeRequest(verb, path, credential);
  if (!body.empty()) {
    request.body = body;
    request.headers.emplace("Content-Type", content_type);
  }
  const Duration left =
      std::max<Duration>(deadline - clock_.Monotonic(), std::chrono::milliseconds(1));
  connection->http->set_read_timeout(std::chrono::ceil<std::chrono::microseconds>(left));
  Allowance& allowance = connection->allowance;
  allowance = {.left = kMaxHead, .until = deadline};
  if (verb != "GET" && options_.may_write) {
    // Now, so that no connection is made in vain; and again when it is made.
    MT_RETURN_IF_ERROR(options_.may_write());
    allowance.may_send = options_.may_write;
  }
  request.response_handler = [&](const httplib::Response&) {
    allowance.left = most;
    return true;
  };

  const Duration start = clock_.Monotonic();
  httplib::Result result = SendUntil(call.stop, *connection->http, request);
  const Duration took = clock_.Monotonic() - start;
  if (!result) {
    if (!allowance.withheld.ok()) return allowance.withheld;
    if (options_.on_request) options_.on_request(verb, "<error>", took);
    if (call.stop.stop_requested()) return Cancelled(path + ": stopped");
    if (allowance.spent) return PastLimit(path, most);
    if (clock_.Monotonic() >= deadline) {
      return DeadlineExceeded(path + ": expected an answer in time, got: none");
    }
    return StatusFromTransport(result.error(), std::string(verb) + " " + path);
  }
  if (options_.on_request) options_.on_request(verb, std::to_string(result->status), took);
  refused = result->status == 401;
  if (refused) credentials_.Refused(credential);
  Answer answer{.status = result->status, .body = std::move(result->body)};
  answer.throttled =
      answer.status == 429 || (answer.status >= 500 && result->headers.contains("Retry-After"));
  answer.retry_after = RetryAfter(result->headers, std::chrono::seconds(1));
  GiveBack(std::move(connection));
  return answer;
}

Result<std::string> HttpClient::Call(std::string_view verb, const std::string& path,
                                     std::string_view content_type, std::string_view body,
                                     const CallOptions& call, size_t most) {
  const Duration deadline = clock_.Monotonic() + call.timeout;
  const std::string what = std::string(verb) + " " + path.substr(0, path.find('?'));
  bool refused_before = false;
  bool lost_before = false;
  for (int tries = 1;; ++tries) {
    const Duration before = clock_.Monotonic();
    MT_RETURN_IF_ERROR(pacer_.Enter(call.stop, deadline - before).At(what));
    if (options_.on_wait) options_.on_wait(verb, clock_.Monotonic() - before);
    bool refused = false;
    Result<Answer> answer = SendOnce(verb, path, content_type, body, call, deadline, most, refused);
    if (!answer.ok()) {
      pacer_.Leave(false, {});
      // A kept-alive connection that the server has just closed fails once; a read may simply go
      // again.
      if (verb == "GET" && !lost_before && answer.status().code() == StatusCode::kUnavailable) {
        lost_before = true;
        continue;
      }
      return answer.status();
    }
    pacer_.Leave(answer->throttled, Jittered(answer->retry_after));
    if (answer->status >= 200 && answer->status < 300) return std::move(answer->body);
    if (refused && !refused_before) {
      refused_before = true;
      continue;
    }
    if (answer->throttled && tries < kMaxThrottledTries &&
        clock_.Monotonic() + answer->retry_after < deadline) {
      continue;
    }
    return StatusFromHttp(answer->status, answer->body, what);
  }
}

// ---- Watch
// ---------------------------------------------------------------------------------------------------------

std::optional<WatchEventType> ParseEventType(std::string_view type) {
  if (type == "ADDED") return WatchEventType::kAdded;
  if (type == "MODIFIED") return WatchEventType::kModified;
  if (type == "DELETED") return WatchEventType::kDeleted;
  if (type == "BOOKMARK") return WatchEventType::kBookmark;
  return std::nullopt;
}

Status HttpClient::Watch(
    const Resource& resource, const WatchOptions& options,
    const std::function<void(WatchEventType type, std::string_view resource_version,
                             std::string_view object)>& on_event,
    std::stop_token stop) {
  std::string path = PathOf(resource, options.ns);
  const std::string what = "WATCH " + path;
  AddParameter(path, "watch", "1");
  AddParameter(path, "allowWatchBookmarks", "true");
  AddParameter(path, "resourceVersion", options.resource_version);
  AddParameter(path, "labelSelector", options.label_selector);
  AddParameter(path, "fieldSelector", options.field_selector);
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(options.server_timeout).count();
  AddParameter(path, "timeoutSeconds", std::to_string(seconds));

  MT_ASSIGN_OR_RETURN(const Credential credential, credentials_.Current());
  MT_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connect(credential));
  connection->http->set_keep_alive(false);
  connection->http->set_read_timeout(seconds + 30, 0);

  int status = 0;
  Status failed;
  std::string pending;  // the part of a line that has arrived
  httplib::Request request = MakeRequest("GET", path, credential);
  // Each event may be as large as an object; all of them together have no limit.
  Allowance& allowance = connection->allowance;
  allowance = {.left = kMaxHead, .until = Duration::max()};
  request.response_handler = [&](const httplib::Response& response) {
    status = response.status;
    allowance.left = kMaxObject;
    return !stop.stop_requested();
  };
  const auto take_line = [&](std::string_view line) {
    allowance.left = kMaxObject;
    const std::string_view type = SliceString(line, {"type"});
    const std::string_view object = Slice(line, {"object"});
    if (type == "ERROR") {
      const auto code = ParseInt(Slice(object, {"code"}));
      failed = StatusFromHttp(code ? static_cast<int>(*code) : 500, object, what);
      return false;
    }
    const auto parsed = ParseEventType(type);
    const std::string_view version = SliceString(object, {"metadata", "resourceVersion"});
    if (!parsed || version.empty()) {
      failed = Unavailable(what + ": expected a watch event, got: " + Excerpt(line));
      return false;
    }
    on_event(*parsed, version, object);
    return !stop.stop_requested();
  };
  request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    if (status != 200) {
      if (pending.size() < kMaxErrorBody) pending.append(data, size);
      return true;
    }
    std::string_view rest(data, size);
    for (size_t end; (end = rest.find('\n')) != std::string_view::npos;
         rest.remove_prefix(end + 1)) {
      if (pending.empty()) {
        if (!take_line(rest.substr(0, end))) return false;
      } else {
        pending.append(rest.substr(0, end));
        if (!take_line(pending)) return false;
        pending.clear();
      }
    }
    pending.append(rest);
    return true;
  };

  const Duration start = clock_.Monotonic();
  httplib::Result result = SendUntil(stop, *connection->http, request);
  if (options_.on_request) {
    options_.on_request("WATCH", status == 0 ? "<error>" : std::to_string(status),
                        clock_.Monotonic() - start);
  }
  if (stop.stop_requested()) return Cancelled(what + ": stopped");
  if (!failed.ok()) return failed;
  if (allowance.spent) return PastLimit(what, kMaxObject);
  if (status == 401) credentials_.Refused(credential);
  if (status != 0 && status != 200) return StatusFromHttp(status, pending, what);
  if (!result) return StatusFromTransport(result.error(), what);
  return OkStatus();
}

}  // namespace

std::string PathOf(const Resource& resource, std::string_view ns, std::string_view name,
                   std::string_view subresource) {
  std::string path = resource.group.empty()
                         ? "/api/" + resource.version
                         : "/apis/" + Escape(resource.group) + "/" + resource.version;
  if (!ns.empty()) path += "/namespaces/" + Escape(ns);
  path += "/" + resource.plural;
  if (!name.empty()) path += "/" + Escape(name);
  if (!subresource.empty()) path += "/" + std::string(subresource);
  return path;
}

Status StatusFromHttp(int http_status, std::string_view body, std::string_view what) {
  std::string message, reason;
  body = body.substr(0, kMaxErrorBody);
  const json parsed = json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_object() && parsed.contains("message") && parsed["message"].is_string()) {
    message = parsed["message"].get<std::string>();
    if (parsed.contains("reason") && parsed["reason"].is_string()) {
      reason = parsed["reason"].get<std::string>();
    }
  } else {
    message = Excerpt(Trim(body), 500);
  }
  const bool quota = message.find("exceeded quota") != std::string::npos;
  if (message.size() > kMaxErrorMessage) message = Excerpt(message, kMaxErrorMessage);
  const std::string text =
      std::string(what) + ": HTTP " + std::to_string(http_status) + ": " + message;
  switch (http_status) {
    case 401:
      return Status(StatusCode::kUnauthenticated, text);
    case 403:
      // A quota refuses with the same code as a missing permission, but goes away by itself.
      if (quota) return ResourceExhausted(text);
      return PermissionDenied(text);
    case 404:
      return NotFound(text);
    case 405:
      return Unimplemented(text);
    case 409:
      return reason == "AlreadyExists" ? AlreadyExists(text) : Aborted(text);
    case 410:
      return OutOfRange(text);
    case 504:
      return DeadlineExceeded(text);
    default:
      break;
  }
  if (http_status == 429 || http_status >= 500) return Unavailable(text);
  return InvalidArgument(text);
}

Result<std::unique_ptr<Client>> NewHttpClient(const ClientConfig& config,
                                              const HttpClientOptions& options, Clock& clock) {
  MT_ASSIGN_OR_RETURN(Endpoint endpoint, ParseEndpoint(config.server, "server"));
  std::optional<Endpoint> proxy;
  if (!config.proxy_url.empty()) {
    MT_ASSIGN_OR_RETURN(proxy, ParseEndpoint(config.proxy_url, "proxy-url"));
    if (proxy->tls)
      return Unimplemented("proxy-url: expected http://, got: " + Excerpt(config.proxy_url));
  }
  if (config.client_certificate_file.empty() + config.client_certificate_data.empty() !=
      config.client_key_file.empty() + config.client_key_data.empty()) {
    return InvalidArgument(
        "kubeconfig: expected client-certificate and client-key together, got: only one of them");
  }
  // OpenSSL writes without MSG_NOSIGNAL: a connection that breaks must be an error, not the end of
  // the process.
  struct sigaction present {};
  if (sigaction(SIGPIPE, nullptr, &present) == 0 && present.sa_handler == SIG_DFL) {
    signal(SIGPIPE, SIG_IGN);
  }
  auto client =
      std::make_unique<HttpClient>(config, std::move(endpoint), std::move(proxy), options, clock);
  MT_RETURN_IF_ERROR(client->Prepare());
  return std::unique_ptr<Client>(std::move(client));
}

}  // namespace meshtrain::kube
