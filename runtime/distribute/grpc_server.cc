#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/distribute/grpc_internal.h"

namespace meshtrain::distribute {
namespace {

constexpr int kHandshakeMs = 5'000;
constexpr int kIdleMs = 300'000;
constexpr int kBacklog = 1024;
// Descriptors that connections never take: the process must still be able to open its files.
constexpr rlim_t kSpareDescriptors = 64;
constexpr int kFullPauseMs = 100;

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      Close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Descriptor() { Close(); }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  int fd_ = -1;
};

// IPv6 takes IPv4 too where the host has it.
Result<Descriptor> Listen(int port) {
  const int on = 1;
  const int off = 0;
  const std::string where = "port " + std::to_string(port);
  Descriptor out(socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  int error = 0;
  bool bound = false;
  if (out.get() >= 0 && setsockopt(out.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0) {
    setsockopt(out.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in6 address{.sin6_family = AF_INET6, .sin6_port = htons(static_cast<uint16_t>(port))};
    bound = bind(out.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    error = errno;
  }
  if (!bound && error != EADDRINUSE && error != EACCES) {
    out = Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    setsockopt(out.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
    bound = bind(out.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    error = errno;
  }
  if (bound && listen(out.get(), kBacklog) == 0) return out;
  if (bound) error = errno;
  return Unavailable(where + ": expected to listen at it, got: " + std::strerror(error));
}

int PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

}  // namespace

struct GrpcServer::Impl {
  Descriptor listener;
  Descriptor wake;  // eventfd: written once, when accepting ends
  int port = 0;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  std::unique_ptr<grpc::Server> server;
  std::jthread accepting;

  void Accept(std::stop_token stop);
  enum class Accepted : uint8_t { kYes, kTooMany, kNoDescriptor };
  // One connection, if one is there.
  Accepted AcceptOne();
};

GrpcServer::Impl::Accepted GrpcServer::Impl::AcceptOne() {
  Descriptor connection(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (connection.get() < 0) {
    const bool exhausted =
        errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    return exhausted ? Accepted::kNoDescriptor : Accepted::kYes;
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      static_cast<rlim_t>(connection.get()) + kSpareDescriptors >= limit.rlim_cur) {
    return Accepted::kTooMany;  // closed at once: the kernel gives the lowest free number, so the
                                // ones below are taken
  }
  const int on = 1;
  setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  parameters.listener_fd = listener.get();
  parameters.fd = connection.release();
  acceptor->HandleNewConnection(&parameters);
  return Accepted::kYes;
}

void GrpcServer::Impl::Accept(std::stop_token stop) {
  std::optional<Duration> warned;
  while (!stop.stop_requested()) {
    pollfd waiting[2] = {{wake.get(), POLLIN, 0}, {listener.get(), POLLIN, 0}};
    if (poll(waiting, 2, -1) < 0 && errno != EINTR) return;
    if ((waiting[1].revents & POLLIN) == 0) continue;
    const Accepted accepted = AcceptOne();
    const Duration now = SystemClock().Monotonic();
    if (accepted != Accepted::kYes && (!warned || now - *warned > std::chrono::seconds(10))) {
      warned = now;
      LogWarning("too many open files: connections are refused", {{"port", std::to_string(port)}});
    }
    if (accepted == Accepted::kNoDescriptor) poll(waiting, 1, kFullPauseMs);
  }
}

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GrpcServer::~GrpcServer() { Shutdown(Duration(0)); }

Result<std::unique_ptr<GrpcServer>> GrpcServer::Create(
    const ServerOptions& options, const std::vector<grpc::Service*>& services) {
  auto impl = std::make_unique<Impl>();
  MT_ASSIGN_OR_RETURN(auto credentials, MakeServerCredentials(options.security));
  MT_ASSIGN_OR_RETURN(impl->listener, Listen(options.port));
  impl->port = PortOf(impl->listener.get());
  impl->wake = Descriptor(eventfd(0, EFD_CLOEXEC));
  if (impl->wake.get() < 0) return Unavailable(std::string("eventfd: ") + std::strerror(errno));

  grpc::ServerBuilder builder;
  impl->acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      std::move(credentials));
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_receive_bytes));
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
  if (options.bulk) {
    for (const auto& [name, value] : BulkArguments()) builder.AddChannelArgument(name, value);
  }
  for (grpc::Service* service : services) builder.RegisterService(service);
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr) {
    return Unavailable("port " + std::to_string(impl->port) +
                       ": expected a gRPC server, got: none (its log says why)");
  }
  Impl* const raw = impl.get();
  impl->accepting = std::jthread([raw](std::stop_token stop) { raw->Accept(std::move(stop)); });
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
}

int GrpcServer::port() const { return impl_->port; }

void GrpcServer::Shutdown(Duration grace) {
  if (impl_->accepting.joinable()) {
    impl_->accepting.request_stop();
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(impl_->wake.get(), &one, sizeof one);
    impl_->accepting.join();
    impl_->listener = Descriptor();  // who connects from now on is refused at once
  }
  if (impl_->server != nullptr) {
    impl_->server->Shutdown(std::chrono::system_clock::now() + grace);
    impl_->server.reset();
  }
}

}  // namespace meshtrain::distribute
