// A process's own small web server: a few fixed pages for probes, scrapers and people.
//
// Its port is open to whoever can reach it, so it keeps true:
// - One thread polls every connection and never waits for one. A page is made only once the whole
//   head of its request is in, so whoever sends nothing, sends slowly or reads slowly keeps nobody
//   else from being answered.
// - The head has 2 s from the accept on, however it trickles in; the answer has 10 s to leave (2 s
//   at most once the server stops) and the peer 2 s more to close. Then the connection is reset.
// - At most 256 connections are held. When another one comes, the oldest goes: an honest client has
//   sent its request by the time it is accepted, so it is the silent that go. Unsent answers are
//   at most 8 MiB in all, or a single one that is larger; here, too, the oldest goes.
// - The kernel's share is bounded as well: a small send buffer each, and no unsent bytes kept for
//   a connection that was dropped.
//
// HTTP itself is cpp-httplib's, whose own server has a thread wait for each connection. One request
// per connection: every answer says "Connection: close", so a scraper that would keep its
// connection opens the next one. GET and HEAD, of whole pages whatever ranges are asked for; what
// is no page is 404, what is no HTTP or names two hosts 400, a body 413, a host that is not ours
// 421; a head over 8 KiB resets the connection.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace meshtrain::telemetry {

struct HttpAnswer {
  int status = 200;
  std::string type;  // of the body, "text/plain"
  std::string body;
};

class HttpServer {
 public:
  // By path ("/metrics"); a query is ignored. Called by the server's thread, one at a time, so none
  // may block. One that throws is answered 500.
  using Pages = std::map<std::string, std::function<HttpAnswer()>, std::less<>>;
  // Whether a request of this path and Host is answered ("": it has none); else it gets 421. Null:
  // every one is.
  using Gate = std::function<bool(std::string_view path, std::string_view host)>;

  // `host` is a name or an address, "0.0.0.0" or "::" for all; port 0 takes a free one.
  // Errors: kUnavailable when the address cannot be bound (of
  // Origin::kPeers where the port is taken).
  static Result<std::unique_ptr<HttpServer>> Start(const std::string& host, int port, Pages pages,
                                                   Clock& clock = SystemClock(), Gate gate = {});
  // Stops; waits for answers in progress, each of which ends within seconds.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  // Takes no more requests and waits for answers in progress. Errors: kDeadlineExceeded; then they
  // still run.
  Status Stop(Duration timeout);

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshtrain::telemetry
