#include "runtime/parameter/worker/worker_server.h"

#include <atomic>
#include <string>
#include <utility>

namespace meshtrain::parameter {

using mesh::Tensor;
using mesh::TensorType;

namespace {

std::vector<TensorType> TypesOf(const std::vector<Tensor>& tensors) {
  std::vector<TensorType> types;
  for (const Tensor& tensor : tensors) types.push_back(tensor.type());
  return types;
}

// A request whose payload is that of its entries.
template <typename RequestType, typename Handle>
Method EntriesMethod(Handle handle) {
  return {[](std::string_view head) -> Result<std::vector<TensorType>> {
            MT_ASSIGN_OR_RETURN(const RequestType request, Decode<RequestType>(head));
            return TypesOf(EntriesPayload(request.entries));
          },
          [handle](Request request, Reply reply) {
            auto message = Decode<RequestType>(request.head);
            Status status = message.status();
            if (status.ok()) status = FillEntries(std::move(request.payload), &message->entries);
            if (!status.ok()) return reply(status);
            handle(std::move(*message), std::make_shared<Reply>(std::move(reply)));
          }};
}

}  // namespace

class WorkerServer::Impl {
 public:
  explicit Impl(ExecutorOptions options) : executor_(std::move(options)) {}

  Status Listen(const ListenAt& at, const Identity& identity) {
    MT_RETURN_IF_ERROR(executor_.Start());
    std::map<std::string, Method> methods;
    methods[kWorkerSetUp] = EntriesMethod<WorkerSetUpRequest>(
        [this](WorkerSetUpRequest request, std::shared_ptr<Reply> reply) {
          chief_.Called();
          executor_.SetUp(std::move(request), [this, reply](const Status& status) {
            if (!status.ok()) return (*reply)(status);
            chief_.Began();
            (*reply)(Frame{Encode(WorkerSetUpReply{executor_.Ping().boot}), {}});
          });
        });
    methods[kWorkerLoad] =
        EntriesMethod<LoadRequest>([this](LoadRequest request, std::shared_ptr<Reply> reply) {
          executor_.Load(std::move(request), [reply](const Status& status) {
            if (!status.ok()) return (*reply)(status);
            (*reply)(Frame{});
          });
        });
    methods[kWorkerRun] = {
        [](std::string_view head) -> Result<std::vector<TensorType>> {
          MT_ASSIGN_OR_RETURN(const RunRequest request, Decode<RunRequest>(head));
          std::vector<TensorType> types;
          for (const RunArgument& argument : request.arguments) {
            if (argument.kind == RunArgument::Kind::kTensor) types.push_back(argument.type);
          }
          return types;
        },
        [this](Request request, Reply reply) {
          auto message = Decode<RunRequest>(request.head);
          if (!message.ok()) return reply(message.status());
          auto shared = std::make_shared<Reply>(std::move(reply));
          executor_.Run(
              std::move(*message), std::move(request.payload),
              [shared](const Result<RunReply>& answer, const std::vector<Tensor>& outputs) {
                if (!answer.ok()) return (*shared)(answer.status());
                Frame frame{Encode(*answer), {}};
                for (const Tensor& t : outputs) frame.payload.push_back(PieceOf(t));
                (*shared)(std::move(frame));
              });
        }};
    methods[kWorkerPing] = {nullptr, [this](Request request, Reply reply) {
                              auto ping = Decode<PingRequest>(request.head);
                              if (!ping.ok()) return reply(ping.status());
                              chief_.Heard(std::move(ping->lost));
                              reply(Frame{Encode(executor_.Ping()), {}});
                            }};
    const auto told = [this](auto what) {
      return Method{nullptr, [this, what](Request request, Reply reply) {
                      const auto end = Decode<EndRequest>(request.head);
                      if (!end.ok()) return reply(end.status());
                      if (const int64_t ours = executor_.Ping().term; end->term != ours) {
                        return reply(FailedPrecondition("expected term " + std::to_string(ours) +
                                                        ", got: " + std::to_string(end->term)));
                      }
                      what();
                      reply(Frame{});
                    }};
    };
    methods[kWorkerEnd] = told([this] { ended_ = true; });
    methods[kWorkerLeave] = told([this] { chief_.Left(); });
    MT_ASSIGN_OR_RETURN(listener_, Listener::Create(at, identity, std::move(methods)));
    return OkStatus();
  }
  int port() const { return listener_->port(); }
  bool ended() const { return ended_; }
  ChiefSeen chief() const { return chief_.seen(); }

  // Calls that come while the executor ends are refused by it; the listener, which waits for
  // answers, goes last.
  void Close() {
    executor_.Close();
    listener_.reset();
  }

 private:
  Executor executor_;
  std::atomic<bool> ended_ = false;
  ChiefWatch chief_;
  std::unique_ptr<Listener> listener_;
};

WorkerServer::WorkerServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WorkerServer::~WorkerServer() { impl_->Close(); }

Result<std::unique_ptr<WorkerServer>> WorkerServer::Serve(WorkerOptions options) {
  const Identity identity = options.executor.identity;
  auto impl = std::make_unique<Impl>(std::move(options.executor));
  MT_RETURN_IF_ERROR(impl->Listen({.address = options.address, .port = options.port}, identity));
  return std::unique_ptr<WorkerServer>(new WorkerServer(std::move(impl)));
}

int WorkerServer::port() const { return impl_->port(); }
bool WorkerServer::ended() const { return impl_->ended(); }
ChiefSeen WorkerServer::chief() const { return impl_->chief(); }

}  // namespace meshtrain::parameter
