#include "runtime/parameter/server/server.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <list>
#include <optional>
#include <thread>
#include <variant>

#include "runtime/base/log.h"
#include "runtime/base/mutex.h"
#include "runtime/base/thread.h"
#include "runtime/parameter/server/task_thread.h"

namespace meshtrain::parameter {

using mesh::Tensor;
using mesh::TensorType;

namespace {

constexpr Duration kIdle = std::chrono::seconds(1);
constexpr Duration kWaiterCheck = std::chrono::milliseconds(50);

}  // namespace

class ParameterServer::Impl {
 public:
  explicit Impl(std::unique_ptr<Store> store) : store_(std::move(store)), boot_(DrawBoot()) {
    PublishView();
  }
  ~Impl() {
    {
      MutexLock lock(mutex_);
      closed_ = true;
    }
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
    writer_.Close();
    {
      // Replies that nobody will give answer kCancelled as they go.
      std::vector<Work> work;
      std::list<Waiter> waiters;
      MutexLock lock(mutex_);
      work.swap(queue_);
      waiters.swap(waiters_);
    }
    listener_.reset();
  }

  Status Start(const ListenAt& at, const Identity& identity) {
    MT_RETURN_IF_ERROR(writer_.Start());
    MT_ASSIGN_OR_RETURN(thread_,
                        StartThread("a server's pushes", [this](std::stop_token s) { Loop(s); }));
    MT_ASSIGN_OR_RETURN(listener_, Listener::Create(at, identity, Methods()));
    return OkStatus();
  }
  int port() const { return listener_->port(); }
  Status health() {
    MutexLock lock(mutex_);
    return health_;
  }
  bool ended() const { return ended_; }
  ChiefSeen chief() const { return chief_.seen(); }
  ServerStats stats() {
    ServerStats stats{.pushes = pushes_,
                      .stale = stale_,
                      .not_finite = not_finite_,
                      .pulls = pulls_,
                      .pushed_bytes = pushed_bytes_,
                      .pulled_bytes = pulled_bytes_};
    MutexLock lock(mutex_);
    stats.log_bytes = view_.log_bytes;
    return stats;
  }

 private:
  struct PushWork {
    Push push;
    Reply reply;
  };
  // Something that the store does between pushes.
  using Task = std::function<void(Store&)>;
  using Work = std::variant<PushWork, Task>;
  struct Waiter {
    PullRequest request;
    Reply reply;
    Duration until;  // monotonic
  };
  // What other threads may see of the store, as of the last group.
  struct View {
    std::shared_ptr<const StoreVersion> newest;
    std::shared_ptr<const Catalogue> catalogue;
    int64_t definitions = 0;
    int64_t log_bytes = 0;
  };

  std::map<std::string, Method> Methods();
  // A method whose answer the store gives on its own thread.
  template <typename Request, typename Handle>
  Method StoreMethod(Handle handle);

  void Add(Work work) {
    MutexLock lock(mutex_);
    if (closed_) return;  // `work` goes, and its reply with it
    queue_.push_back(std::move(work));
    changed_.NotifyOne();
  }

  // Store::Fence, where it would say something new.
  void Fence(int64_t term, std::vector<int64_t> incarnations) {
    std::pair fence(term, std::move(incarnations));
    {
      MutexLock lock(mutex_);
      if (fence == fence_) return;
      fence_ = fence;
    }
    Add(Task([fence = std::move(fence)](Store& store) { store.Fence(fence.first, fence.second); }));
  }
  void Loop(std::stop_token stop);
  void Do(std::vector<Work> work);
  void ApplyGroup(std::span<PushWork*> group);
  void AddWanted(const std::vector<std::string>& names, const StoreVersion& newest,
                 PushReply* reply, Frame* frame);
  void PublishView();
  void ServeWaiters();
  Result<Frame> Answer(const PullRequest& request, const StoreVersion& newest);
  void Pull(Request request, Reply reply);
  void Write(Request request, Reply reply);

  std::unique_ptr<Store> store_;  // the loop's
  const uint64_t boot_;
  std::atomic<bool> ended_ = false;
  ChiefWatch chief_;
  std::atomic<int64_t> pushes_ = 0, stale_ = 0, not_finite_ = 0, pulls_ = 0;
  std::atomic<int64_t> pushed_bytes_ = 0, pulled_bytes_ = 0;
  std::optional<Cut> cut_;  // the loop's: the last one, until it is written

  Mutex mutex_;
  CondVar changed_;
  std::vector<Work> queue_ MT_GUARDED_BY(mutex_);
  std::list<Waiter> waiters_ MT_GUARDED_BY(mutex_);
  View view_ MT_GUARDED_BY(mutex_);
  std::pair<int64_t, std::vector<int64_t>> fence_ MT_GUARDED_BY(mutex_);  // the last one
  Status health_ MT_GUARDED_BY(mutex_);
  bool closed_ MT_GUARDED_BY(mutex_) = false;

  TaskThread writer_;  // of checkpoints
  std::jthread thread_;
  std::unique_ptr<Listener> listener_;
};

template <typename RequestType, typename Handle>
Method ParameterServer::Impl::StoreMethod(Handle handle) {
  return {nullptr, [this, handle](Request request, Reply reply) {
            auto message = Decode<RequestType>(request.head);
            if (!message.ok()) return reply(message.status());
            // std::function wants copies; a reply has none.
            auto shared = std::make_shared<Reply>(std::move(reply));
            Add(Task([this, message = std::move(*message), shared, handle](Store& store) {
              Result<Frame> answer = handle(store, message);
              // First: whoever hears the answer may ask at once, and pings are answered from the
              // view.
              PublishView();
              (*shared)(std::move(answer));
            }));
          }};
}

std::map<std::string, Method> ParameterServer::Impl::Methods() {
  std::map<std::string, Method> methods;
  methods[kServerSetUp] =
      StoreMethod<SetUpRequest>([this](Store& store, const SetUpRequest& r) -> Result<Frame> {
        cut_.reset();
        MT_RETURN_IF_ERROR(store.SetUp(r));
        chief_.Began();
        return Frame{};
      });
  methods[kServerDefine] =
      StoreMethod<DefineRequest>([](Store& store, const DefineRequest& r) -> Result<Frame> {
        MT_RETURN_IF_ERROR(store.Define(r));
        return Frame{};
      });
  methods[kServerRead] =
      StoreMethod<ReadRequest>([](Store& store, const ReadRequest& r) -> Result<Frame> {
        if (r.term != store.term()) {
          return FailedPrecondition("expected term " + std::to_string(store.term()) +
                                    ", got: " + std::to_string(r.term));
        }
        MT_ASSIGN_OR_RETURN(const std::vector<Tensor> values, store.Read(r.names));
        ReadReply reply{store.version(), {}};
        Frame frame;
        for (const Tensor& value : values) {
          reply.types.push_back(value.type());
          frame.payload.push_back(PieceOf(value));
        }
        frame.head = Encode(reply);
        return frame;
      });
  methods[kServerCut] =
      StoreMethod<CutRequest>([this](Store& store, const CutRequest& r) -> Result<Frame> {
        MT_ASSIGN_OR_RETURN(cut_, store.MakeCut(r));
        return Frame{Encode(CutReply{cut_->version}), {}};
      });
  methods[kServerCommitted] =
      StoreMethod<CommittedRequest>([](Store& store, const CommittedRequest& r) -> Result<Frame> {
        MT_RETURN_IF_ERROR(store.Committed(r));
        return Frame{};
      });
  const auto told = [this](auto what) {
    return StoreMethod<EndRequest>([what](Store& store, const EndRequest& r) -> Result<Frame> {
      if (r.term != store.term()) {
        return FailedPrecondition("expected term " + std::to_string(store.term()) +
                                  ", got: " + std::to_string(r.term));
      }
      what();
      return Frame{};
    });
  };
  methods[kServerEnd] = told([this] { ended_ = true; });
  methods[kServerLeave] = told([this] { chief_.Left(); });
  methods[kServerWrite] = {nullptr, [this](Request request, Reply reply) {
                             Write(std::move(request), std::move(reply));
                           }};
  methods[kServerPull] = {nullptr, [this](Request request, Reply reply) {
                            Pull(std::move(request), std::move(reply));
                          }};
  methods[kServerPing] = {nullptr, [this](Request request, Reply reply) {
                            auto ping = Decode<PingRequest>(request.head);
                            if (!ping.ok()) return reply(ping.status());
                            chief_.Heard(std::move(ping->lost));
                            Fence(ping->term, std::move(ping->incarnations));
                            ServerPingReply answer{.boot = boot_};
                            {
                              MutexLock lock(mutex_);
                              answer.term = view_.catalogue->term;
                              answer.definitions = view_.definitions;
                              answer.version = view_.newest->version;
                              answer.log_bytes = view_.log_bytes;
                            }
                            reply(Frame{Encode(answer), {}});
                          }};
  methods[kServerPush] = {
      [this](std::string_view head) -> Result<std::vector<TensorType>> {
        MT_ASSIGN_OR_RETURN(const PushRequest r, Decode<PushRequest>(head));
        std::shared_ptr<const Catalogue> catalogue;
        {
          MutexLock lock(mutex_);
          catalogue = view_.catalogue;
        }
        if (r.term != catalogue->term) {
          return FailedPrecondition("expected term " + std::to_string(catalogue->term) +
                                    ", got: " + std::to_string(r.term));
        }
        std::vector<TensorType> types;
        if (!r.update.empty()) {
          const auto it = catalogue->updates.find(r.update);
          if (it == catalogue->updates.end()) {
            return FailedPrecondition("expected a known update, got: `" + r.update + "`");
          }
          types = it->second;
        }
        for (const std::string& name : r.names) {
          const auto it = catalogue->states.find(name);
          if (it == catalogue->states.end()) {
            return FailedPrecondition("expected a known state, got: `" + name + "`");
          }
          types.push_back(it->second);
        }
        return types;
      },
      [this](Request request, Reply reply) {
        auto message = Decode<PushRequest>(request.head);
        if (!message.ok()) return reply(message.status());
        Add(PushWork{{std::move(*message), std::move(request.payload)}, std::move(reply)});
      }};
  return methods;
}

void ParameterServer::Impl::Loop(std::stop_token stop) {
  while (!stop.stop_requested()) {
    std::vector<Work> work;
    {
      MutexLock lock(mutex_);
      changed_.WaitFor(mutex_, stop, waiters_.empty() ? kIdle : kWaiterCheck,
                       [&]() MT_REQUIRES(mutex_) { return !queue_.empty(); });
      work.swap(queue_);
    }
    if (!work.empty()) Do(std::move(work));
    ServeWaiters();
  }
}

// In the order in which they came; pushes side by side are one group.
void ParameterServer::Impl::Do(std::vector<Work> work) {
  std::vector<PushWork*> group;
  for (Work& item : work) {
    if (auto* push = std::get_if<PushWork>(&item)) {
      group.push_back(push);
      continue;
    }
    ApplyGroup(group);
    group.clear();
    std::get<Task>(item)(*store_);
  }
  ApplyGroup(group);
}

// What a push wants back, if all of it is there.
void ParameterServer::Impl::AddWanted(const std::vector<std::string>& names,
                                      const StoreVersion& newest, PushReply* reply, Frame* frame) {
  reply->values_version = newest.version;
  for (const std::string& name : names) {
    const auto it = newest.values.find(name);
    if (it == newest.values.end()) {
      reply->types.clear();
      frame->payload.clear();
      return;
    }
    reply->types.push_back(it->second.type());
    frame->payload.push_back(PieceOf(it->second));
  }
  for (const TensorType& type : reply->types) pulled_bytes_ += type.num_bytes();
}

void ParameterServer::Impl::ApplyGroup(std::span<PushWork*> group) {
  if (group.empty()) return;
  std::vector<Push> pushes;
  for (PushWork* work : group) pushes.push_back(std::move(work->push));
  std::vector<Result<PushReply>> results = store_->Apply(pushes);
  PublishView();
  const StoreVersion& newest = *store_->newest();
  for (size_t i = 0; i < group.size(); ++i) {
    if (results[i].ok()) {
      ++pushes_;
      for (const Tensor& value : pushes[i].values) pushed_bytes_ += value.type().num_bytes();
      Frame answer;
      AddWanted(pushes[i].request.want, newest, &*results[i], &answer);
      answer.head = Encode(*results[i]);
      group[i]->reply(std::move(answer));
    } else {
      // Store::Apply's words for a push beyond the staleness bound, and for one that is not finite.
      const StatusCode code = results[i].status().code();
      stale_ += code == StatusCode::kAborted ? 1 : 0;
      not_finite_ += code == StatusCode::kOutOfRange ? 1 : 0;
      group[i]->reply(results[i].status());
    }
  }
}

void ParameterServer::Impl::PublishView() {
  View view{store_->newest(), store_->catalogue(), store_->definitions(), store_->log_bytes()};
  const Status health = store_->health();
  bool failed_now = false;
  {
    MutexLock lock(mutex_);
    failed_now = health_.ok() && !health.ok();
    std::swap(view_, view);
    health_ = health;
  }
  if (failed_now) {
    LogError("parameter server acknowledges nothing more", {{"error", health.message()}});
  }
}

Result<Frame> ParameterServer::Impl::Answer(const PullRequest& request,
                                            const StoreVersion& newest) {
  ++pulls_;
  if (request.have_version == newest.version) {
    return Frame{Encode(PullReply{newest.version, true, {}}), {}};
  }
  PullReply reply{newest.version, false, {}};
  Frame frame;
  for (const std::string& name : request.names) {
    const auto it = newest.values.find(name);
    if (it == newest.values.end()) {
      return FailedPrecondition("expected a variable of this server, got: `" + name + "`");
    }
    reply.types.push_back(it->second.type());
    pulled_bytes_ += it->second.type().num_bytes();
    frame.payload.push_back(PieceOf(it->second));
  }
  frame.head = Encode(reply);
  return frame;
}

void ParameterServer::Impl::Pull(Request request, Reply reply) {
  auto message = Decode<PullRequest>(request.head);
  if (!message.ok()) return reply(message.status());
  std::shared_ptr<const StoreVersion> newest;
  {
    MutexLock lock(mutex_);
    newest = view_.newest;
    if (message->term == newest->term && message->min_version > newest->version) {
      if (closed_) return;  // `reply` goes unsaid
      waiters_.push_back(
          {std::move(*message), std::move(reply), SystemClock().Monotonic() + request.left});
      changed_.NotifyOne();
      return;
    }
  }
  if (message->term != newest->term || newest->term == 0) {
    return reply(FailedPrecondition("expected term " + std::to_string(newest->term) +
                                    ", got: " + std::to_string(message->term)));
  }
  reply(Answer(*message, *newest));
}

void ParameterServer::Impl::ServeWaiters() {
  std::list<Waiter> ready;
  std::shared_ptr<const StoreVersion> newest;
  const Duration now = SystemClock().Monotonic();
  {
    MutexLock lock(mutex_);
    newest = view_.newest;
    for (auto it = waiters_.begin(); it != waiters_.end();) {
      const auto next = std::next(it);
      if (it->request.term != newest->term || it->request.min_version <= newest->version ||
          it->until <= now) {
        ready.splice(ready.end(), waiters_, it);
      }
      it = next;
    }
  }
  for (Waiter& waiter : ready) {
    if (waiter.request.term != newest->term) {
      waiter.reply(FailedPrecondition("expected term " + std::to_string(newest->term) +
                                      ", got: " + std::to_string(waiter.request.term)));
    } else if (waiter.request.min_version > newest->version) {
      waiter.reply(DeadlineExceeded("pull: expected version " +
                                    std::to_string(waiter.request.min_version) +
                                    " in time, got: " + std::to_string(newest->version)));
    } else {
      waiter.reply(Answer(waiter.request, *newest));
    }
  }
}

// Fetches the cut on the store's thread, writes it on the writer's.
void ParameterServer::Impl::Write(Request request, Reply reply) {
  auto message = Decode<WriteRequest>(request.head);
  if (!message.ok()) return reply(message.status());
  auto shared = std::make_shared<Reply>(std::move(reply));
  Add(Task([this, message = std::move(*message), shared](Store& store) {
    if (!cut_ || cut_->step != message.step || message.term != store.term()) {
      return (*shared)(
          FailedPrecondition("expected a step that was cut, got: " + std::to_string(message.step)));
    }
    auto cut = std::make_shared<Cut>(std::move(*cut_));
    cut_.reset();
    writer_.Add([cut, message, shared] {
      const auto index = WriteCut(*cut, message.program_hash, message.metadata);
      if (!index.ok()) return (*shared)(index.status());
      (*shared)(Frame{Encode(WriteReply{index->ToJson()}), {}});
    });
  }));
}

ParameterServer::ParameterServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ParameterServer::~ParameterServer() = default;

Result<std::unique_ptr<ParameterServer>> ParameterServer::Serve(ServerOptions options) {
  MT_ASSIGN_OR_RETURN(std::unique_ptr<Store> store, Store::Open(options.store));
  auto impl = std::make_unique<Impl>(std::move(store));
  MT_RETURN_IF_ERROR(
      impl->Start({.address = options.address, .port = options.port}, options.identity));
  return std::unique_ptr<ParameterServer>(new ParameterServer(std::move(impl)));
}

int ParameterServer::port() const { return impl_->port(); }
Status ParameterServer::health() const { return impl_->health(); }
bool ParameterServer::ended() const { return impl_->ended(); }
ChiefSeen ParameterServer::chief() const { return impl_->chief(); }
ServerStats ParameterServer::stats() const { return impl_->stats(); }

}  // namespace meshtrain::parameter
