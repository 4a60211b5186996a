// The serving side of transfers: a Listener, its requests and their answers.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <optional>

#include "runtime/parameter/messages/frame_stream.h"
#include "runtime/parameter/messages/transfer.h"
#include "runtime/rpc/grpc_internal.h"

namespace meshtrain::parameter {

using mesh::Tensor;
using mesh::TensorType;
using rpc::CallMac;

class Listener::Impl final : public grpc::Service {
 public:
  Impl(const Identity& identity, std::map<std::string, Method> methods);

  rpc::CallGate gate_;
  std::unique_ptr<rpc::GrpcServer> server_;

 private:
  class ServerCall;
  const std::map<std::string, Method> methods_;
};

// One request and its answer. gRPC is done with it only after Finish, so a reply always finds it.
class Listener::Impl::ServerCall final
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
      public Reply::Sink {
 public:
  ServerCall(Impl& listener, grpc::CallbackServerContext* context, const std::string& name,
             const Method& method)
      : context_(context),
        method_(method),
        reader_([this](std::string_view head) { return Allocate(head); }) {
    Result<CallMac> mac = listener.gate_.Admit(*context, name, SystemClock().Now());
    if (!mac.ok()) {
      FinishWith(mac.status());
      return;
    }
    mac_ = *std::move(mac);
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Finish(rpc::ToGrpc(Cancelled("expected a request, got: a part of one")));
      return;
    }
    const Status taken = reader_.Take(incoming_, mac_);
    incoming_.Clear();
    if (!taken.ok()) {
      if (reader_.damaged()) context_->AddTrailingMetadata(kDamagedKey, "1");
      FinishWith(taken);
      return;
    }
    if (!reader_.complete()) {
      StartRead(&incoming_);
      return;
    }
    const auto deadline = std::chrono::time_point_cast<Duration>(context_->deadline());
    Request request{reader_.TakeHead(), std::move(payload_),
                    std::max(Duration(0), deadline - SystemClock().Now())};
    method_.handle(std::move(request), Reply(this));
  }

  void Send(Result<Frame> answer) override {
    if (!answer.ok()) {
      FinishWith(answer.status());
      return;
    }
    sender_.emplace(std::move(*answer));
    Write();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      Finish(rpc::ToGrpc(Cancelled("the caller has gone")));
      return;
    }
    Write();
  }

  void OnDone() override { delete this; }

 private:
  void FinishWith(const Status& error) {
    context_->AddTrailingMetadata(rpc::kAnsweredKey, "1");
    Finish(rpc::ToGrpc(error));
  }
  void Write() {
    outgoing_ = sender_->Next(mac_);
    if (sender_->done()) {
      StartWriteAndFinish(&outgoing_, grpc::WriteOptions(), grpc::Status::OK);
    } else {
      StartWrite(&outgoing_);
    }
  }

  Result<std::vector<std::span<std::byte>>> Allocate(std::string_view head) {
    std::vector<std::span<std::byte>> parts;
    if (!method_.payload) return parts;
    MT_ASSIGN_OR_RETURN(const std::vector<TensorType> types, method_.payload(head));
    for (const TensorType& type : types) payload_.emplace_back(type);
    for (Tensor& tensor : payload_) parts.push_back(tensor.mutable_bytes());
    return parts;
  }

  grpc::CallbackServerContext* const context_;
  const Method& method_;
  CallMac mac_;
  FrameReader reader_;
  std::optional<FrameSender> sender_;
  std::vector<Tensor> payload_;
  grpc::ByteBuffer incoming_, outgoing_;
};

Listener::Impl::Impl(const Identity& identity, std::map<std::string, Method> methods)
    : gate_(identity.security, identity.job), methods_(std::move(methods)) {
  int index = 0;
  for (const auto& [name, method] : methods_) {
    // What generated code does for a method of raw messages; gRPC owns both objects.
    AddMethod(new grpc::internal::RpcServiceMethod(
        name.c_str(), grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
    MarkMethodRawCallback(
        index++, new grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
                     [this, name = &name, method = &method](grpc::CallbackServerContext* context) {
                       return new ServerCall(*this, context, *name, *method);
                     }));
  }
}

Listener::Listener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Listener::~Listener() { Shutdown(Duration(0)); }

Result<std::unique_ptr<Listener>> Listener::Create(const ListenAt& at, const Identity& identity,
                                                   std::map<std::string, Method> methods) {
  auto impl = std::make_unique<Impl>(identity, std::move(methods));
  MT_ASSIGN_OR_RETURN(impl->server_, rpc::GrpcServer::Create({.address = at.address,
                                                              .port = at.port,
                                                              .gate = &impl->gate_,
                                                              .max_receive_bytes = kMaxMessageBytes,
                                                              .bulk = true},
                                                             {impl.get()}));
  return std::unique_ptr<Listener>(new Listener(std::move(impl)));
}

int Listener::port() const { return impl_->server_->port(); }
void Listener::Shutdown(Duration grace) { impl_->server_->Shutdown(grace); }

}  // namespace meshtrain::parameter
