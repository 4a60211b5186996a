// A server over the wire of which a test says in which order it answers, and what it has lost.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/parameter/messages/transfer.h"
#include "runtime/parameter/server/store.h"
#include "tests/runtime/parameter/cluster_testing.h"
#include "tests/runtime/parameter/must.h"

namespace meshtrain::parameter {

// On a store without a log.
class HeldServer {
 public:
  HeldServer() : store_(Must(Store::Open({}))) {
    std::map<std::string, Method> methods;
    methods[kServerSetUp] = On<SetUpRequest>([this](const SetUpRequest& r) -> Result<Frame> {
      MT_RETURN_IF_ERROR(store_->SetUp(r));
      return Frame{};
    });
    methods[kServerDefine] = On<DefineRequest>([this](const DefineRequest& r) -> Result<Frame> {
      MT_RETURN_IF_ERROR(store_->Define(r));
      return Frame{};
    });
    methods[kServerPing] = On<PingRequest>([this](const PingRequest&) -> Result<Frame> {
      return Frame{Encode(ServerPingReply{.term = store_->term(),
                                          .definitions = store_->definitions(),
                                          .version = store_->version()}),
                   {}};
    });
    methods[kServerCut] = On<CutRequest>([this](const CutRequest& r) -> Result<Frame> {
      MT_ASSIGN_OR_RETURN(cut_, store_->MakeCut(r));
      return Frame{Encode(CutReply{cut_->version}), {}};
    });
    methods[kServerWrite] = On<WriteRequest>([this](const WriteRequest& r) -> Result<Frame> {
      if (std::exchange(lose_cut_, false)) cut_.reset();
      if (!cut_) return FailedPrecondition("expected a step that was cut, got: none");
      MT_ASSIGN_OR_RETURN(const checkpoint::Index index,
                          WriteCut(*cut_, r.program_hash, r.metadata));
      cut_.reset();
      return Frame{Encode(WriteReply{index.ToJson()}), {}};
    });
    methods[kServerCommitted] =
        On<CommittedRequest>([this](const CommittedRequest& r) -> Result<Frame> {
          MT_RETURN_IF_ERROR(store_->Committed(r));
          return Frame{};
        });
    methods[kServerPush] = {
        [this](std::string_view head) -> Result<std::vector<mesh::TensorType>> {
          MT_ASSIGN_OR_RETURN(const PushRequest r, Decode<PushRequest>(head));
          MutexLock lock(mutex_);
          std::vector<mesh::TensorType> types;
          for (const std::string& name : r.names) {
            types.push_back(store_->catalogue()->states.at(name));
          }
          return types;
        },
        [this](Request request, Reply reply) {
          auto message = Decode<PushRequest>(request.head);
          if (!message.ok()) return reply(message.status());
          Take(Push{std::move(*message), std::move(request.payload)}, std::move(reply));
        }};
    listener_ = Must(Listener::Create({}, TestIdentity(), std::move(methods)));
  }
  ~HeldServer() {
    {
      MutexLock lock(mutex_);
      held_.reset();
      unanswered_.clear();
    }
    listener_.reset();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(listener_->port()); }

  // The next push is applied behind the one after it.
  void HoldNextPush() {
    MutexLock lock(mutex_);
    hold_ = true;
  }
  // False after a minute without one.
  bool WaitForHeldPush() {
    MutexLock lock(mutex_);
    return changed_.WaitFor(mutex_, {}, std::chrono::seconds(60),
                            [&] { return held_.has_value(); });
  }
  // From the next checkpoint that it is to write on it answers nothing.
  void FallSilentAtNextWrite() {
    MutexLock lock(mutex_);
    fall_silent_ = true;
  }
  // As one that is killed and comes back before it has written what it cut next.
  void LoseNextCut() {
    MutexLock lock(mutex_);
    lose_cut_ = true;
  }
  mesh::Tensor Read(const std::string& name) {
    MutexLock lock(mutex_);
    return Must(store_->Read({name}))[0];
  }

 private:
  using Held = std::pair<Push, Reply>;

  template <typename Message, typename Handle>
  Method On(Handle handle) {
    return {nullptr, [this, handle](Request request, Reply reply) {
              const auto message = Decode<Message>(request.head);
              if (!message.ok()) return reply(message.status());
              Result<Frame> answer = Frame{};
              {
                MutexLock lock(mutex_);
                silent_ = silent_ || (fall_silent_ && std::is_same_v<Message, WriteRequest>);
                if (silent_) return unanswered_.push_back(std::move(reply));
                answer = handle(*message);
              }
              reply(std::move(answer));
            }};
  }

  void Take(Push push, Reply reply) {
    std::vector<Held> now;
    std::vector<Result<PushReply>> results;
    {
      MutexLock lock(mutex_);
      if (std::exchange(hold_, false)) {
        held_.emplace(std::move(push), std::move(reply));
        return changed_.NotifyAll();
      }
      now.emplace_back(std::move(push), std::move(reply));
      if (held_) now.push_back(std::move(*held_));
      held_.reset();
      for (const Held& one : now) results.push_back(store_->Apply({&one.first, 1})[0]);
    }
    for (size_t i = 0; i < now.size(); ++i) {
      if (results[i].ok()) {
        now[i].second(Frame{Encode(*results[i]), {}});
      } else {
        now[i].second(results[i].status());
      }
    }
  }

  Mutex mutex_;
  CondVar changed_;
  const std::unique_ptr<Store> store_;
  std::optional<Cut> cut_;
  bool hold_ = false, lose_cut_ = false, fall_silent_ = false, silent_ = false;
  std::vector<Reply> unanswered_;
  std::optional<Held> held_;
  std::unique_ptr<Listener> listener_;
};

}  // namespace meshtrain::parameter
