#include "runtime/wire/tls.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/file.h"

namespace meshtrain::wire {
namespace {

constexpr int64_t kMaxPemBytes = int64_t{1} << 20;
// One system call carries so much: a record of TLS, 16 KiB, is too little for one.
constexpr size_t kBufferBytes = size_t{256} << 10;
// A key of AES-GCM is good for 2^24.5 records (RFC 8446, 5.5), some 390 GB.
constexpr int64_t kBytesOfAKey = int64_t{64} << 30;

template <auto function>
struct Free {
  template <typename T>
  void operator()(T* what) const {
    function(what);
  }
};
using Bio = std::unique_ptr<BIO, Free<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;

Bio Memory(const std::string& text) {
  Bio bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  MT_CHECK(bio != nullptr);
  return bio;
}

// The oldest error that OpenSSL notes, as people may read it: "wrong version number".
std::string LibraryReason() {
  const unsigned long code = ERR_peek_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  ERR_clear_error();
  return reason == nullptr ? "no reason given" : reason;
}

Result<std::vector<Certificate>> ReadCertificates(const std::string& path) {
  MT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxPemBytes));
  const Bio bio = Memory(text);
  std::vector<Certificate> out;
  while (X509* next = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    out.emplace_back(next);
  }
  const bool ended = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string reason = LibraryReason();
  if (out.empty() || !ended) {
    return InvalidArgument(path + ": expected certificates in PEM, got: " +
                           (text.empty() ? "nothing" : "something else (" + reason + ")"));
  }
  return out;
}

Result<Key> ReadKey(const std::string& path) {
  MT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxPemBytes));
  const Bio bio = Memory(text);
  // A key with a password is refused instead of asked for.
  const auto no_password = [](char*, int, int, void*) { return -1; };
  Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, nullptr));
  const std::string reason = LibraryReason();
  if (key == nullptr) {
    return InvalidArgument(path + ": expected a private key in PEM, without a password, got: " +
                           (text.empty() ? "nothing" : "something else (" + reason + ")"));
  }
  return key;
}

// Whether the authority vouches for our own certificate, now: else every peer would refuse us.
Status CheckOwn(SSL_CTX* context, const std::string& path) {
  const std::unique_ptr<X509_STORE_CTX, Free<X509_STORE_CTX_free>> check(X509_STORE_CTX_new());
  MT_CHECK(check != nullptr);
  STACK_OF(X509)* chain = nullptr;
  SSL_CTX_get0_chain_certs(context, &chain);
  MT_CHECK(X509_STORE_CTX_init(check.get(), SSL_CTX_get_cert_store(context),
                               SSL_CTX_get0_certificate(context), chain) == 1);
  const bool good = X509_verify_cert(check.get()) == 1;
  const int why = X509_STORE_CTX_get_error(check.get());
  ERR_clear_error();
  if (good) return OkStatus();
  return InvalidArgument(path + ": expected a certificate that the authority vouches for, got: " +
                         X509_verify_cert_error_string(why));
}

bool IsAddress(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

}  // namespace

Result<std::shared_ptr<const TlsContext>> TlsContext::Create(const TlsFiles& files) {
  MT_ASSIGN_OR_RETURN(const std::vector<Certificate> authorities, ReadCertificates(files.ca));
  MT_ASSIGN_OR_RETURN(const std::vector<Certificate> own, ReadCertificates(files.certificate));
  MT_ASSIGN_OR_RETURN(const Key key, ReadKey(files.key));
  SSL_CTX* const context = SSL_CTX_new(TLS_method());
  MT_CHECK(context != nullptr);
  std::shared_ptr<const TlsContext> made(new TlsContext(context));
  MT_CHECK(SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1);
  // The fastest first: on a link between processes the cipher is most of the cost.
  MT_CHECK(SSL_CTX_set_ciphersuites(context,
                                    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:"
                                    "TLS_CHACHA20_POLY1305_SHA256") == 1);
  // Connections are made once: nothing of one is kept for another.
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  for (const Certificate& authority : authorities) {
    MT_CHECK(X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority.get()) == 1);
  }
  if (SSL_CTX_use_certificate(context, own[0].get()) != 1) {
    return InvalidArgument(files.certificate +
                           ": expected a certificate that can be used, got: " + LibraryReason());
  }
  for (size_t i = 1; i < own.size(); ++i) {
    MT_CHECK(SSL_CTX_add1_chain_cert(context, own[i].get()) == 1);
  }
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1 || SSL_CTX_check_private_key(context) != 1) {
    return InvalidArgument(files.key + ": expected the private key of the certificate in " +
                           files.certificate + ", got: another (" + LibraryReason() + ")");
  }
  MT_RETURN_IF_ERROR(CheckOwn(context, files.certificate));
  return made;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

// OpenSSL reads from and writes to the two buffers; the socket is ours.
struct TlsStream::Impl {
  std::shared_ptr<const TlsContext> context;
  int fd = -1;
  std::string host;  // "": we accepted
  std::unique_ptr<SSL, Free<SSL_free>> ssl;
  std::vector<char> in, out;
  size_t in_begin = 0, in_end = 0, out_begin = 0;
  int socket_error = 0;
  bool closed = false;  // the peer's end of the stream has come
  bool shaken = false;  // the handshake is done
  int64_t of_this_key = 0;

  size_t held() const { return out.size() - out_begin; }

  // False: socket_error.
  bool Push() {
    while (held() > 0) {
      const ssize_t n = send(fd, out.data() + out_begin, held(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return true;
        socket_error = errno;
        return false;
      }
      out_begin += static_cast<size_t>(n);
    }
    out.clear();
    out_begin = 0;
    return true;
  }

  int Read(char* to, int bytes) {
    if (in_begin == in_end) {
      const ssize_t n = recv(fd, in.data(), in.size(), MSG_DONTWAIT);
      if (n < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return -1;
        socket_error = errno;
        return 0;
      }
      if (n == 0) {
        closed = true;
        return 0;
      }
      in_begin = 0;
      in_end = static_cast<size_t>(n);
    }
    const size_t n = std::min(in_end - in_begin, static_cast<size_t>(bytes));
    std::memcpy(to, in.data() + in_begin, n);
    in_begin += n;
    return static_cast<int>(n);
  }
};

namespace {

// A BIO whose data is a TlsStream::Impl, seen through these two calls.
struct Buffers {
  void* self;
  int (*read)(void* self, char* to, int bytes);
  int (*write)(void* self, const char* from, int bytes);
};

BIO_METHOD* BufferMethod() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "meshtrain");
    MT_CHECK(made != nullptr);
    BIO_meth_set_read(made, [](BIO* bio, char* to, int bytes) {
      BIO_clear_retry_flags(bio);
      const auto* buffers = static_cast<const Buffers*>(BIO_get_data(bio));
      const int n = buffers->read(buffers->self, to, bytes);
      if (n < 0) BIO_set_retry_read(bio);
      return n;
    });
    BIO_meth_set_write(made, [](BIO* bio, const char* from, int bytes) {
      BIO_clear_retry_flags(bio);
      const auto* buffers = static_cast<const Buffers*>(BIO_get_data(bio));
      return buffers->write(buffers->self, from, bytes);
    });
    BIO_meth_set_ctrl(made, [](BIO*, int command, long, void*) -> long {
      return command == BIO_CTRL_FLUSH ? 1 : 0;
    });
    BIO_meth_set_destroy(made, [](BIO* bio) {
      delete static_cast<Buffers*>(BIO_get_data(bio));
      return 1;
    });
    return made;
  }();
  return method;
}

}  // namespace

TlsStream::TlsStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  impl_->in.resize(kBufferBytes);
  impl_->ssl.reset(SSL_new(impl_->context->context_));
  BIO* const bio = BIO_new(BufferMethod());
  MT_CHECK(impl_->ssl != nullptr && bio != nullptr);
  BIO_set_data(
      bio, new Buffers{.self = impl_.get(),
                       .read = [](void* self, char* to,
                                  int bytes) { return static_cast<Impl*>(self)->Read(to, bytes); },
                       .write =
                           [](void* self, const char* from, int bytes) {
                             auto& out = static_cast<Impl*>(self)->out;
                             out.insert(out.end(), from, from + bytes);
                             return bytes;
                           }});
  BIO_set_init(bio, 1);
  SSL_set_bio(impl_->ssl.get(), bio, bio);
}
TlsStream::~TlsStream() = default;

std::unique_ptr<TlsStream> TlsStream::Connect(std::shared_ptr<const TlsContext> context, int fd,
                                              const std::string& host) {
  auto impl = std::make_unique<Impl>();
  impl->context = std::move(context);
  impl->fd = fd;
  impl->host = host;
  std::unique_ptr<TlsStream> stream(new TlsStream(std::move(impl)));
  SSL* const ssl = stream->impl_->ssl.get();
  if (IsAddress(host)) {
    MT_CHECK(X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str()) == 1);
  } else {
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    MT_CHECK(SSL_set1_host(ssl, host.c_str()) == 1);
    static_cast<void>(SSL_set_tlsext_host_name(ssl, host.c_str()));
  }
  SSL_set_connect_state(ssl);
  return stream;
}

std::unique_ptr<TlsStream> TlsStream::Accept(std::shared_ptr<const TlsContext> context, int fd) {
  auto impl = std::make_unique<Impl>();
  impl->context = std::move(context);
  impl->fd = fd;
  std::unique_ptr<TlsStream> stream(new TlsStream(std::move(impl)));
  SSL_set_accept_state(stream->impl_->ssl.get());
  return stream;
}

// What went wrong in the call that gave `result`.
Status TlsStream::Failure(int result, bool handshake) {
  const int kind = SSL_get_error(impl_->ssl.get(), result);
  const std::string during = handshake ? "during the TLS handshake" : "on a sealed connection";
  if (impl_->socket_error != 0) {
    ERR_clear_error();
    return Unavailable("the connection broke " + during + ": " +
                       std::strerror(impl_->socket_error));
  }
  const long verdict = SSL_get_verify_result(impl_->ssl.get());
  if (handshake && verdict != X509_V_OK) {
    ERR_clear_error();
    std::string whose = "its certificate is refused: ";
    whose += X509_verify_cert_error_string(verdict);
    if (verdict == X509_V_ERR_HOSTNAME_MISMATCH || verdict == X509_V_ERR_IP_ADDRESS_MISMATCH) {
      whose += ": expected one for " + impl_->host;
    }
    return Status(StatusCode::kUnauthenticated, whose);
  }
  const unsigned long code = ERR_peek_error();
  const bool alert =
      ERR_GET_LIB(code) == ERR_LIB_SSL && ERR_GET_REASON(code) > SSL_AD_REASON_OFFSET;
  if (kind == SSL_ERROR_SSL && alert) {
    // With TLS 1.3 whoever connected hears of it only after its own handshake.
    return Status(StatusCode::kUnauthenticated, "it refuses our certificate: " + LibraryReason());
  }
  if (impl_->closed || kind == SSL_ERROR_ZERO_RETURN || kind == SSL_ERROR_SYSCALL) {
    ERR_clear_error();
    return Unavailable("the other side closed the connection " + during);
  }
  return Unavailable("expected TLS from the other side, got: other bytes (" + LibraryReason() +
                     ")");
}

Result<TlsStream::Advance> TlsStream::Handshake() {
  if (!impl_->shaken) {
    ERR_clear_error();
    const int result = SSL_do_handshake(impl_->ssl.get());
    const int kind = SSL_get_error(impl_->ssl.get(), result);
    if (result != 1 && kind != SSL_ERROR_WANT_READ) {
      const Status why = Failure(result, /*handshake=*/true);
      static_cast<void>(impl_->Push());  // the alert, so that the other side knows as well
      return why;
    }
    impl_->shaken = result == 1;
  }
  if (!impl_->Push()) return Failure(-1, /*handshake=*/true);
  if (unsent()) return Advance::kWantsWrite;
  return impl_->shaken ? Advance::kDone : Advance::kWantsRead;
}

bool TlsStream::unsent() const { return impl_->held() > 0; }

bool TlsStream::Flush() {
  if (impl_->Push()) return true;
  error_ = Failure(-1, /*handshake=*/false);
  return false;
}

int64_t TlsStream::Send(const void* data, size_t bytes) {
  if (impl_->held() >= kBufferBytes) {
    if (!Flush()) return -1;
    if (unsent()) return 0;
  }
  int64_t sent = 0;
  while (static_cast<size_t>(sent) < bytes && impl_->held() < kBufferBytes) {
    size_t n = 0;
    ERR_clear_error();
    const int result = SSL_write_ex(impl_->ssl.get(), static_cast<const char*>(data) + sent,
                                    std::min(bytes - static_cast<size_t>(sent), kBufferBytes), &n);
    if (result != 1) {
      error_ = Failure(result, /*handshake=*/false);
      return -1;
    }
    sent += static_cast<int64_t>(n);
    impl_->of_this_key += static_cast<int64_t>(n);
  }
  if (impl_->of_this_key >= kBytesOfAKey) {
    impl_->of_this_key = 0;
    static_cast<void>(SSL_key_update(impl_->ssl.get(), SSL_KEY_UPDATE_NOT_REQUESTED));
  }
  return Flush() ? sent : -1;
}

int64_t TlsStream::Receive(void* data, size_t bytes) {
  int64_t got = 0;
  while (static_cast<size_t>(got) < bytes) {
    size_t n = 0;
    ERR_clear_error();
    const int result = SSL_read_ex(impl_->ssl.get(), static_cast<char*>(data) + got,
                                   bytes - static_cast<size_t>(got), &n);
    if (result == 1) {
      got += static_cast<int64_t>(n);
      continue;
    }
    if (SSL_get_error(impl_->ssl.get(), result) == SSL_ERROR_WANT_READ || got > 0) return got;
    // A connection that is closed without TLS' own word is closed all the same: frames say
    // themselves where they end.
    if (impl_->closed || SSL_get_error(impl_->ssl.get(), result) == SSL_ERROR_ZERO_RETURN) {
      ERR_clear_error();
      return -2;
    }
    error_ = Failure(result, /*handshake=*/false);
    return -1;
  }
  return got;
}

}  // namespace meshtrain::wire
