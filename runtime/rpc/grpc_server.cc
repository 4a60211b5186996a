#include <arpa/inet.h>
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
#include "runtime/base/thread.h"
#include "runtime/rpc/grpc_internal.h"

namespace meshtrain::rpc {
namespace {

constexpr int kHandshakeMs = 5'000;
constexpr int kIdleMs = 300'000;
constexpr int kBacklog = 1024;
// Descriptors that connections never take: the process must still be able to open its files.
constexpr rlim_t kSpareDescriptors = 64;
constexpr int kFullPauseMs = 100;
// How often connections that prove nothing are looked through.
constexpr int kLookMs = 500;
constexpr int kMaxHeaderBytes = 8 << 10;

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

// Binds a new socket; kept in `out` where that worked, else errno tells.
bool Bind(const sockaddr* address, socklen_t size, bool both_families, Descriptor& out) {
  const int on = 1;
  const int v6_only = both_families ? 0 : 1;
  Descriptor made(socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (made.get() < 0) return false;
  setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address->sa_family == AF_INET6 &&
      setsockopt(made.get(), IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof v6_only) != 0) {
    return false;
  }
  if (bind(made.get(), address, size) != 0) return false;
  out = std::move(made);
  return true;
}

// At one address; "": at all, for which IPv6 takes IPv4 too where the host has it.
Result<Descriptor> Listen(const std::string& host, int port) {
  const std::string where = (host.empty() ? "port " : host + " port ") + std::to_string(port);
  sockaddr_in6 six{.sin6_family = AF_INET6, .sin6_port = htons(static_cast<uint16_t>(port))};
  sockaddr_in four{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  Descriptor out;
  bool bound = false;
  if (host.empty()) {
    bound = Bind(reinterpret_cast<sockaddr*>(&six), sizeof six, true, out) ||
            (errno != EADDRINUSE && errno != EACCES &&
             Bind(reinterpret_cast<sockaddr*>(&four), sizeof four, false, out));
  } else if (inet_pton(AF_INET, host.c_str(), &four.sin_addr) == 1) {
    bound = Bind(reinterpret_cast<sockaddr*>(&four), sizeof four, false, out);
  } else if (inet_pton(AF_INET6, host.c_str(), &six.sin6_addr) == 1) {
    bound = Bind(reinterpret_cast<sockaddr*>(&six), sizeof six, false, out);
  } else {
    return InvalidArgument(where + ": expected a numeric address to listen at, got: " + host);
  }
  if (bound && listen(out.get(), kBacklog) == 0) return out;
  const bool taken = errno == EADDRINUSE;
  const Status error =
      Unavailable(where + ": expected to listen at it, got: " + std::strerror(errno));
  return taken ? error.From(Origin::kPeers) : error;
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
  CallGate* gate = nullptr;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  std::unique_ptr<grpc::Server> server;
  std::jthread accepting;

  void Accept(std::stop_token stop);
  enum class Accepted : uint8_t { kYes, kTooMany, kNoDescriptor };
  // One connection, if one is there.
  Accepted AcceptOne();
};

GrpcServer::Impl::Accepted GrpcServer::Impl::AcceptOne() {
  sockaddr_storage peer{};
  socklen_t peer_size = sizeof peer;
  Descriptor connection(accept4(listener.get(), reinterpret_cast<sockaddr*>(&peer), &peer_size,
                                SOCK_NONBLOCK | SOCK_CLOEXEC));
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
  if (!gate->half_open().Add(connection.get(), peer, SystemClock().Monotonic()).ok()) {
    return Accepted::kNoDescriptor;
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
  Duration looked{};
  while (!stop.stop_requested()) {
    HalfOpen& half_open = gate->half_open();
    Duration now = SystemClock().Monotonic();
    const auto full_until = half_open.FullUntil(now);
    pollfd waiting[2] = {{wake.get(), POLLIN, 0}, {full_until ? -1 : listener.get(), POLLIN, 0}};
    int wait_ms = half_open.size() == 0 ? -1 : kLookMs;
    if (full_until) {
      wait_ms =
          static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(*full_until - now).count());
    }
    if (poll(waiting, 2, wait_ms) < 0 && errno != EINTR) return;
    now = SystemClock().Monotonic();
    if (now - looked >= std::chrono::milliseconds(kLookMs)) {
      half_open.EndExpired(now);
      looked = now;
    }
    if ((waiting[1].revents & POLLIN) == 0) continue;
    const Accepted accepted = AcceptOne();
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
  impl->gate = options.gate;
  MT_ASSIGN_OR_RETURN(auto credentials, MakeServerCredentials(options.gate->security()));
  MT_ASSIGN_OR_RETURN(impl->listener, Listen(options.address, options.port));
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
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxHeaderBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams);
  if (!options.bulk) {
    // A stream whose messages nobody takes stays at HTTP/2's 64 KiB, however fast its caller sends.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  } else {
    for (const auto& [name, value] : BulkArguments()) builder.AddChannelArgument(name, value);
  }
  for (grpc::Service* service : services) builder.RegisterService(service);
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr) {
    return Unavailable("port " + std::to_string(impl->port) +
                       ": expected a gRPC server, got: none (its log says why)");
  }
  Impl* const raw = impl.get();
  MT_ASSIGN_OR_RETURN(impl->accepting,
                      StartThread("port " + std::to_string(impl->port),
                                  [raw](std::stop_token stop) { raw->Accept(std::move(stop)); }));
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

}  // namespace meshtrain::rpc
