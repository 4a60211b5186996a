// Long: one class, whose calls and streams share connections, credentials and limits.
#include "operator/kube/http_client.h"

#include <httplib.h>
#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "operator/kube/connections.h"
#include "operator/kube/credentials.h"
#include "operator/kube/endpoint.h"
#include "operator/kube/http_status.h"
#include "operator/kube/json_slice.h"
#include "operator/kube/pacer.h"
#include "runtime/base/text.h"
#include "runtime/base/time_text.h"

namespace meshtrain::kube {
namespace {

using nlohmann::json;

constexpr int kMaxThrottledTries = 10;

// kCanceled where `stop` came first. The library ignores a stop() before it has a socket, so one
// that is there already is not left to it.
httplib::Result SendUntil(const std::stop_token& stop, httplib::ClientImpl& http,
                          httplib::Request& request) {
  std::stop_callback on_stop(stop, [&] { http.stop(); });
  if (stop.stop_requested()) return httplib::Result(nullptr, httplib::Error::Canceled);
  return http.send(request);
}

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
                     ": expected an answer from the API server, got: " + httplib::to_string(error))
      .From(Origin::kApiServer);
}

Status Stopped(const std::string& what) {
  return Cancelled(what + ": stopped").From(Origin::kStop);
}

Status PastLimit(std::string_view what, size_t most) {
  return DataLoss(std::string(what) + ": expected a head of at most " +
                  std::to_string(kMaxHead >> 10) + " KiB and a body of at most " +
                  std::to_string(most >> 20) + " MiB, got: more")
      .From(Origin::kApiServer);
}

Status NoList(const std::string& what, std::string_view got) {
  return Unavailable(what + ": expected a list, got: " + Excerpt(got)).From(Origin::kApiServer);
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
        base_path_(endpoint.path),
        options_(std::move(options)),
        clock_(clock),
        credentials_(config_, clock),
        pacer_(clock, options_.connections),
        connections_(config_, std::move(endpoint), std::move(proxy), clock) {}

  Status Prepare() { return connections_.Prepare(); }

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
        return NoList(path, *page);
      }
      next = std::string(SliceString(*page, {"metadata", "continue"}));
      if (next.empty()) return version;
      // A server may leave a page short, but does not do so for ever.
      short_pages += found < chunk ? 1 : 0;
      if (++pages >= kMaxPages || short_pages > kMaxShortPages) {
        return DataLoss(what + ": expected a list that ends, got: " + std::to_string(pages) +
                        " pages, " + std::to_string(short_pages) + " of them short, and more")
            .From(Origin::kApiServer);
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
    return NoList(path, page);
  }

  Status Watch(const Resource& resource, const WatchOptions& options,
               const std::function<void(WatchEventType type, std::string_view resource_version,
                                        std::string_view object)>& on_event,
               std::stop_token stop) override;

  Status ReadLog(std::string_view ns, std::string_view pod, const LogOptions& options,
                 const std::function<void(std::string_view text)>& on_text,
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
  const std::string base_path_;  // before every request's path
  const HttpClientOptions options_;
  Clock& clock_;
  Credentials credentials_;
  Pacer pacer_;
  Connections connections_;
};

httplib::Request HttpClient::MakeRequest(std::string_view verb, const std::string& path,
                                         const Credential& credential) const {
  httplib::Request request;
  request.method = verb;
  request.path = base_path_ + path;
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
  MT_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection, connections_.Take(credential));
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
    if (call.stop.stop_requested()) return Stopped(path);
    if (allowance.spent) return PastLimit(path, most);
    if (clock_.Monotonic() >= deadline) {
      return DeadlineExceeded(path + ": expected an answer in time, got: none")
          .From(Origin::kApiServer);
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
  connections_.GiveBack(std::move(connection));
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
  MT_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection,
                      connections_.Connect(credential));
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
      failed = Unavailable(what + ": expected a watch event, got: " + Excerpt(line))
                   .From(Origin::kApiServer);
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
  if (stop.stop_requested()) return Stopped(what);
  if (!failed.ok()) return failed;
  if (allowance.spent) return PastLimit(what, kMaxObject);
  if (status == 401) credentials_.Refused(credential);
  if (status != 0 && status != 200) return StatusFromHttp(status, pending, what);
  if (!result) return StatusFromTransport(result.error(), what);
  return OkStatus();
}

// ---- Logs

Status HttpClient::ReadLog(std::string_view ns, std::string_view pod, const LogOptions& options,
                           const std::function<void(std::string_view text)>& on_text,
                           std::stop_token stop) {
  std::string path = PathOf(Pods(), ns, pod, "log");
  const std::string what = "GET " + path;
  AddParameter(path, "container", options.container);
  if (options.follow) AddParameter(path, "follow", "true");
  if (options.previous) AddParameter(path, "previous", "true");
  if (options.timestamps) AddParameter(path, "timestamps", "true");
  if (options.since) AddParameter(path, "sinceTime", FormatTime(*options.since));
  if (options.tail_lines) AddParameter(path, "tailLines", std::to_string(*options.tail_lines));

  MT_ASSIGN_OR_RETURN(const Credential credential, credentials_.Current());
  MT_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection,
                      connections_.Connect(credential));
  connection->http->set_keep_alive(false);
  // A program may be silent for as long as it likes.
  connection->http->set_read_timeout(options.follow ? 24 * 3600 : 60, 0);
  int status = 0;
  std::string refusal;
  httplib::Request request = MakeRequest("GET", path, credential);
  request.headers.erase("Accept");
  request.headers.emplace("Accept", "*/*");
  Allowance& allowance = connection->allowance;
  allowance = {.left = kMaxHead, .until = Duration::max()};
  request.response_handler = [&](const httplib::Response& response) {
    status = response.status;
    allowance.left = kMaxObject;
    return !stop.stop_requested();
  };
  request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    allowance.left = kMaxObject;  // a log has no limit
    if (status == 200) {
      on_text(std::string_view(data, size));
    } else if (refusal.size() < kMaxErrorBody) {
      refusal.append(data, size);
    }
    return !stop.stop_requested();
  };
  const Duration start = clock_.Monotonic();
  httplib::Result result = SendUntil(stop, *connection->http, request);
  if (options_.on_request) {
    options_.on_request("LOG", status == 0 ? "<error>" : std::to_string(status),
                        clock_.Monotonic() - start);
  }
  if (stop.stop_requested()) return Stopped(what);
  if (status == 401) credentials_.Refused(credential);
  if (status != 0 && status != 200) return StatusFromHttp(status, refusal, what);
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
