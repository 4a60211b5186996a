#include "runtime/collective/fabric.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/base/text.h"
#include "runtime/collective/fabric_impl.h"
#include "runtime/wire/checksum.h"

namespace meshtrain::collective {
namespace {

using std::chrono::steady_clock;

// A living peer answers in less, even on a machine that has too much to do.
constexpr auto kAskTime = std::chrono::milliseconds(400);

std::string Link(const char* path) {
  std::array<char, 256> text;
  const ssize_t n = readlink(path, text.data(), text.size());
  return n > 0 ? std::string(text.data(), static_cast<size_t>(n)) : "";
}

std::string Hex(const Nonce& nonce) {
  std::string text;
  for (const std::byte b : nonce) {
    text += "0123456789abcdef"[static_cast<int>(b) >> 4];
    text += "0123456789abcdef"[static_cast<int>(b) & 15];
  }
  return text;
}

ControlMessage Failed(const Status& why) {
  ControlMessage message;
  message.kind = ControlKind::kFailed;
  message.code = why.code();
  message.text = why.message();
  return message;
}

}  // namespace

Fabric::Fabric(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Fabric::~Fabric() {
  ControlMessage goodbye;
  goodbye.kind = ControlKind::kGoodbye;
  impl_->acceptor->Leave(goodbye);
}

Result<std::unique_ptr<Fabric>> Fabric::Create(FabricOptions options) {
  auto impl = std::make_unique<Impl>();
  MT_RETURN_IF_ERROR(impl->health.Init());
  if (options.shared_memory) {
    Result<std::unique_ptr<Segment>> segment = Segment::Create();
    if (segment.ok()) {
      impl->segment = std::move(*segment);
      impl->shared.emplace(*impl->segment);
    } else {
      LogWarning("no memory is shared with other processes", {{"why", segment.status().message()}});
    }
  }
  impl->transport.emplace(impl->network, impl->shared ? &*impl->shared : nullptr);
  AcceptorOptions acceptor{options.bind, options.port, options.token,
                           impl->segment ? impl->segment->fd() : -1, options.tls};
  MT_ASSIGN_OR_RETURN(impl->acceptor, Acceptor::Create(std::move(acceptor), impl->health));
  impl->options = std::move(options);
  return std::unique_ptr<Fabric>(new Fabric(std::move(impl)));
}

int Fabric::port() const { return impl_->acceptor->port(); }

std::string Fabric::HostId() {
  // Memory is passed over a Unix socket without a file, which reaches exactly one network namespace
  // of one running system.
  const Result<std::string> boot = ReadFile("/proc/sys/kernel/random/boot_id", 4096);
  const std::string net = Link("/proc/self/ns/net");
  const Socket memory(memfd_create("meshtrain-probe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!boot.ok() || net.empty() || !memory) return "alone-" + Hex(FreshNonce());
  return std::string(Trim(*boot)) + "/" + net;
}

Status Fabric::Connect(const FabricGroup& group, Duration timeout, std::stop_token stop) {
  return impl_->Connect(group, timeout, stop);
}
void Fabric::Abort(const Status& why) { impl_->Abort(why); }
Waiting Fabric::waiting() const { return impl_->health.waiting(); }

void Fabric::Impl::Abort(const Status& why) {
  const Status reason = Unavailable(why.ok() ? "aborted" : why.message());
  if (health.Fail(reason)) acceptor->Tell(Failed(reason));
}

// --- joining

Status Fabric::Impl::Connect(const FabricGroup& wanted, Duration timeout, std::stop_token stop) {
  const int n = static_cast<int>(wanted.processes.size());
  if (wanted.process < 0 || wanted.process >= n) {
    return InvalidArgument("fabric: our place must be in 0.." + std::to_string(n - 1) +
                           ", got: " + std::to_string(wanted.process));
  }
  if (busy.exchange(true)) return FailedPrecondition("fabric: a collective is under way");
  if (!health.failed()) {
    acceptor->Leave(
        Failed(Unavailable("it has gone on to incarnation " + std::to_string(wanted.incarnation))));
  } else {
    acceptor->Leave(Failed(health.why()));
  }
  ++connects;
  group = wanted;
  host_of.clear();
  std::map<std::string, int> numbers;
  for (int p = 0; p < n; ++p) {
    // Without shared memory every process is a host of its own.
    const std::string host = segment ? wanted.processes[p].host : std::to_string(p);
    host_of.push_back(numbers.try_emplace(host, static_cast<int>(numbers.size())).first->second);
  }
  network.Start(n);
  if (shared) shared->Start(n, wanted.incarnation);
  std::vector<std::string> names;
  for (const auto& peer : wanted.processes) names.push_back(peer.name);
  health.Start(wanted.incarnation, std::move(names));

  Status joined = Join(wanted, timeout, stop);
  if (!joined.ok()) {
    joined = joined.At("incarnation " + std::to_string(wanted.incarnation));
    health.Fail(joined);
    acceptor->Leave(Failed(joined));
  }
  busy.store(false);
  return joined;
}

Status Fabric::Impl::Join(const FabricGroup& wanted, Duration timeout, std::stop_token stop) {
  const auto end = steady_clock::now() + timeout;
  const int n = static_cast<int>(wanted.processes.size()), me = wanted.process;
  std::string alike = std::to_string(n) + (segment ? " shared" : " apart");
  for (int p = 0; p < n; ++p) {
    alike += "\n" + wanted.processes[p].name + " " + std::to_string(host_of[p]);
  }

  Acceptor::Expected expected;
  expected.incarnation = wanted.incarnation;
  expected.process = static_cast<uint32_t>(me);
  expected.group = wire::Checksum(alike);
  for (int p = me + 1; p < n; ++p) {
    for (const LinkKind kind : {LinkKind::kData, LinkKind::kControl, LinkKind::kMemory}) {
      if (kind != LinkKind::kMemory || host_of[p] == host_of[me]) {
        expected.links.emplace_back(p, kind);
      }
    }
  }
  const auto wanted_links = expected.links;
  ConnectOptions options_out{options.token,  wanted.incarnation,           expected.process,
                             expected.group, segment ? segment->fd() : -1, options.tls};
  acceptor->Expect(std::move(expected));

  std::vector<ConnectTarget> targets;
  for (int p = 0; p < me; ++p) {
    const FabricGroup::Peer& peer = wanted.processes[p];
    const bool memory = host_of[p] == host_of[me];
    targets.push_back({p, LinkKind::kData, peer.name, peer.address, memory});
    targets.push_back({p, LinkKind::kControl, peer.name, peer.address, false});
  }
  Acceptor::Arrivals links;
  std::vector<std::string> missing;
  Status status =
      ConnectAll(options_out, std::move(targets), resolver, health, timeout, stop, links, missing);
  if (status.ok() && !acceptor->AwaitArrivals(end - steady_clock::now(), stop)) {
    if (stop.stop_requested()) {
      status = Cancelled("connecting to the job's processes was stopped").From(Origin::kStop);
    } else if (health.failed()) {
      status = health.Check();
    } else {
      status = DeadlineExceeded("not all of the job's processes have come").From(Origin::kPeers);
    }
  }
  links.merge(acceptor->TakeArrivals());
  if (!status.ok() && status.code() != StatusCode::kUnauthenticated &&
      status.code() != StatusCode::kFailedPrecondition) {
    std::set<std::string> lines(missing.begin(), missing.end());
    for (const auto& link : wanted_links) {
      if (!links.contains(link)) {
        lines.insert(wanted.processes[link.first].name + ": has not connected");
      }
    }
    for (const std::string& turned : acceptor->TurnedAway()) lines.insert("turned away " + turned);
    status = status.WithMessage(
        status.message() + "; missing: " +
        meshtrain::Join(std::vector<std::string>(lines.begin(), lines.end()), "; "));
  }
  const Status attached = Attach(std::move(links));
  return status.ok() ? attached : status;
}

// Also what there is of links after an error: through the control links the peers hear of it.
Status Fabric::Impl::Attach(Acceptor::Arrivals links) {
  std::vector<std::pair<int, Stream>> controls;
  Status status;
  for (auto& [which, arrival] : links) {
    const auto [process, kind] = which;
    switch (kind) {
      case LinkKind::kData:
        network.Attach(process, std::move(arrival.link));
        break;
      case LinkKind::kControl:
        controls.emplace_back(process, std::move(arrival.link));
        break;
      case LinkKind::kMemory: {
        Result<PeerSegment> peer = PeerSegment::Map(arrival.memory);
        if (peer.ok()) {
          shared->Attach(process, std::move(*peer));
        } else if (status.ok()) {
          status = peer.status().At(group.processes[process].name);
        }
        break;
      }
    }
  }
  acceptor->Adopt(std::move(controls));
  return status;
}

// --- collectives

Status Fabric::Impl::Run(const GroupCall& group_call, uint64_t plan_hash, uint64_t digest,
                         const Body& body) {
  MT_RETURN_IF_ERROR(health.Check().At(group_call.what));
  if (busy.exchange(true)) {
    return FailedPrecondition(group_call.what + ": another collective is under way");
  }
  const uint64_t number = health.Begin(plan_hash, digest, group_call.what);
  Call call;
  call.header.incarnation = group.incarnation;
  call.header.plan_hash = plan_hash;
  call.header.collective = number;
  call.header.call = digest;
  call.header.source = static_cast<uint32_t>(group.process);
  call.deadline = options.deadline;
  call.parallel = group_call.parallel;
  call.health = &health;
  call.diagnosis = this;
  running = &call;
  Status status = body(call);
  running = nullptr;
  if (!status.ok()) {
    status = status.At(group_call.what + " (collective " + std::to_string(number) + ")");
    if (health.Fail(status)) acceptor->Tell(Failed(status));
  }
  health.End();
  busy.store(false);
  return status;
}

Status Fabric::Impl::Late(int process) {
  const ProcessGroup& peers = *running->peers;
  const FrameHeader& ours = running->header;
  std::vector<int> asked;
  for (const int p : peers.processes) {
    if (p != group.process) asked.push_back(p);
  }
  const std::map<int, ControlMessage> answers = acceptor->Ask(asked, ours.collective, kAskTime);
  MT_RETURN_IF_ERROR(health.Check());
  std::vector<std::string> causes;
  for (const int p : asked) {
    const auto at = answers.find(p);
    if (at == answers.end()) {
      causes.push_back(health.Name(p) + " does not answer");
      continue;
    }
    const ControlMessage& answer = at->second;
    const std::string where = "collective " + std::to_string(answer.collective) +
                              (answer.text.empty() ? "" : " (" + answer.text + ")");
    if (answer.collective == ours.collective &&
        (answer.call != ours.call || answer.plan_hash != ours.plan_hash)) {
      FrameHeader theirs = ours;
      theirs.source = static_cast<uint32_t>(p);
      theirs.call = answer.call;
      theirs.plan_hash = answer.plan_hash;
      return Diverged(Compare(theirs,
                              [&] {
                                FrameHeader want = ours;
                                want.source = theirs.source;
                                return want;
                              }()),
                      theirs, ours, health.Name(p), {answer.collective, answer.text},
                      {ours.collective, health.WhatWas(ours.collective)});
    }
    if (answer.collective < ours.collective) {
      causes.push_back(health.Name(p) + " has not come: it is " +
                       (answer.collective == 0 ? "before its first collective"
                        : answer.inside        ? "in " + where
                                               : "past " + where));
    }
  }
  if (causes.empty()) {
    causes.push_back(health.Name(process) + " has sent nothing, though it is there");
  }
  const auto seconds = std::chrono::duration<double>(running->deadline).count();
  std::string shown = std::to_string(seconds);
  shown.resize(shown.find('.') + 2);
  return DeadlineExceeded("nothing came for " + shown + " s: " + meshtrain::Join(causes, ", "))
      .From(Origin::kPeers);
}

Status Fabric::Impl::Diverges(FrameDifference difference, const FrameHeader& got,
                              const FrameHeader& want) {
  Standing theirs{got.collective, ""};
  const int peer = static_cast<int>(want.source);
  if (difference == FrameDifference::kCollective || difference == FrameDifference::kCall) {
    const auto answers = acceptor->Ask({&peer, 1}, got.collective, kAskTime);
    const auto at = answers.find(peer);
    if (at != answers.end()) {
      theirs.what = at->second.asked.empty() && at->second.collective == got.collective
                        ? at->second.text
                        : at->second.asked;
    }
  }
  return Diverged(difference, got, want, health.Name(peer), theirs,
                  {want.collective, health.WhatWas(want.collective)});
}

}  // namespace meshtrain::collective
