// A worker over the wire of which a test says when it answers.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/parameter/messages/messages.h"
#include "runtime/parameter/messages/transfer.h"
#include "tests/runtime/parameter/cluster_testing.h"
#include "tests/runtime/parameter/must.h"

namespace meshtrain::parameter {

// Runs nothing: a step has ended when the test says so.
class HeldWorker {
 public:
  explicit HeldWorker(bool holds_set_up = false) : holds_set_up_(holds_set_up) {
    std::map<std::string, Method> methods;
    methods[kWorkerSetUp] = {TypesIn<WorkerSetUpRequest>, [this](Request request, Reply reply) {
                               const auto message = Decode<WorkerSetUpRequest>(request.head);
                               if (!message.ok()) return reply(message.status());
                               Status refused;
                               {
                                 MutexLock lock(mutex_);
                                 refused = set_up_refusal_;
                                 term_ = message->term;
                                 incarnation_ = message->incarnation;
                                 if (holds_set_up_) {
                                   set_ups_.push_back(std::move(reply));
                                   return changed_.NotifyAll();
                                 }
                               }
                               if (!refused.ok()) return reply(refused);
                               reply(SetUpAnswer());
                             }};
    methods[kWorkerLoad] = {TypesIn<LoadRequest>, [this](Request, Reply reply) {
                              Status status;
                              {
                                MutexLock lock(mutex_);
                                status = refusal_;
                              }
                              if (!status.ok()) return reply(status);
                              reply(Frame{});
                            }};
    methods[kWorkerRun] = {nullptr, [this](Request, Reply reply) {
                             MutexLock lock(mutex_);
                             runs_.push_back(std::move(reply));
                             changed_.NotifyAll();
                           }};
    methods[kWorkerPing] = {nullptr, [this](Request, Reply reply) {
                              WorkerPingReply answer{.boot = 1};
                              {
                                MutexLock lock(mutex_);
                                answer.term = term_;
                                answer.incarnation = incarnation_;
                              }
                              reply(Frame{Encode(answer), {}});
                            }};
    listener_ = Must(Listener::Create({}, TestIdentity(), std::move(methods)));
  }
  ~HeldWorker() {
    {
      MutexLock lock(mutex_);
      set_ups_.clear();
      runs_.clear();
    }
    listener_.reset();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(listener_->port()); }

  // Of entries that it is to load from now on.
  void Refuse(const Status& why) {
    MutexLock lock(mutex_);
    refusal_ = why;
  }
  // To be set up; OK: no more.
  void RefuseSetUp(const Status& why) {
    MutexLock lock(mutex_);
    set_up_refusal_ = why;
  }
  // Each waits a minute for one; false: there was none.
  bool WaitForRun() {
    MutexLock lock(mutex_);
    return Wait(runs_);
  }
  bool EndRun(const RunReply& reply = {}) { return Answer(&runs_, Frame{Encode(reply), {}}); }
  bool EndSetUp() {
    {
      MutexLock lock(mutex_);
      holds_set_up_ = false;
    }
    return Answer(&set_ups_, SetUpAnswer());
  }

 private:
  template <typename Message>
  static Result<std::vector<mesh::TensorType>> TypesIn(std::string_view head) {
    MT_ASSIGN_OR_RETURN(const Message message, Decode<Message>(head));
    std::vector<mesh::TensorType> types;
    for (const mesh::Tensor& t : EntriesPayload(message.entries)) types.push_back(t.type());
    return types;
  }
  static Frame SetUpAnswer() { return Frame{Encode(WorkerSetUpReply{.boot = 1}), {}}; }
  bool Wait(const std::deque<Reply>& replies) MT_REQUIRES(mutex_) {
    return changed_.WaitFor(mutex_, {}, std::chrono::seconds(60), [&] { return !replies.empty(); });
  }
  bool Answer(std::deque<Reply>* replies, Frame frame) {
    std::optional<Reply> reply;
    {
      MutexLock lock(mutex_);
      if (!Wait(*replies)) return false;
      reply.emplace(std::move(replies->front()));
      replies->pop_front();
    }
    (*reply)(std::move(frame));
    return true;
  }

  Mutex mutex_;
  CondVar changed_;
  bool holds_set_up_;
  Status refusal_, set_up_refusal_;
  int64_t term_ = 0, incarnation_ = 0;
  std::deque<Reply> set_ups_, runs_;
  std::unique_ptr<Listener> listener_;
};

}  // namespace meshtrain::parameter
