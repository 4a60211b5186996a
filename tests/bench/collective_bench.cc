// All-reduce between processes of one host.
//   collective_bench MODE [BYTES] [PROCESSES] [ROUNDS]
//     shared          payloads in the communicator's memory
//     shared_copy     payloads elsewhere, through shared memory
//     tcp             over loopback, as between hosts
//     sealed          the same, sealed with certificates
//     encrypt         what sealing alone costs: the bytes of a ring, encrypted and decrypted record
//                     by record, moved nowhere
//     raw_ring        what the connections alone allow: the bytes of a ring, moved without adding
//                     or checking
//     raw_ring_reno   the same under Reno, which ours has over loopback whatever the system's
//                     choice is
// Prints one line of JSON. Every all-reduce is checked once.
#include "tests/bench/collective_bench.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <span>

#include "runtime/base/check.h"
#include "runtime/collective/fabric.h"
#include "tests/support/tls_contexts.h"

namespace meshtrain::bench {
namespace {

using collective::Communicator;
using collective::Fabric;

mesh::Mesh MeshOf(int processes) {
  std::vector<mesh::Device> devices;
  for (int p = 0; p < processes; ++p) devices.push_back({mesh::DeviceKind::kCpu, p, 0});
  return *mesh::Mesh::Create({{"batch", processes}}, devices);
}

void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  _exit(1);
}

int Ours(const std::string& mode, long bytes, int processes, int rounds) {
  auto* together = Shared<Together>();
  const auto tls = mode == "sealed" ? testing_support::NewTlsContext() : nullptr;
  const int process = Fork(processes);
  collective::FabricOptions options;
  options.bind = "127.0.0.1";
  options.token = "bench";
  options.shared_memory = mode != "tcp" && mode != "sealed";
  // Made before the processes part, so that all have one authority.
  if (mode == "sealed") options.tls = tls;
  std::unique_ptr<Fabric> fabric = std::move(*Fabric::Create(options));
  together->ports[process].store(fabric->port());
  together->Wait(processes);
  collective::FabricGroup group;
  group.incarnation = 1;
  group.process = process;
  for (int p = 0; p < processes; ++p) {
    group.processes.push_back({"worker-" + std::to_string(p),
                               "127.0.0.1:" + std::to_string(together->ports[p].load()), "host"});
  }
  Must(fabric->Connect(group, std::chrono::seconds(30), {}));
  {
    const std::unique_ptr<Communicator> communicator =
        collective::MakeProcessCommunicator(*fabric, MeshOf(processes), 1);
    const long count = bytes / 4;
    std::vector<float> own(count);
    float* data = own.data();
    if (mode == "shared") {
      const std::span<std::byte> bucket = communicator->BucketMemory(bytes);
      MT_CHECK(!bucket.empty());
      data = reinterpret_cast<float*>(bucket.data());
    }
    std::fill(data, data + count, 1.0f);
    const collective::Participant us{process, reinterpret_cast<std::byte*>(data),
                                     reinterpret_cast<std::byte*>(data)};
    const collective::GroupCall call{{0}, mesh::DType::kF32, "bench"};
    const auto run = [&] {
      Must(communicator->AllReduce(call, mesh::Reduction::kSum, count, {&us, 1}));
    };
    run();
    for (long i = 0; i < count; ++i) MT_CHECK(data[i] == static_cast<float>(processes));
    std::fill(data, data + count, 0.0f);
    const bool small = bytes <= 65536;
    const Times times = Measure(*together, processes, rounds, small, run);
    if (process == 0) Print(mode, processes, bytes, times);
  }
  return Finish(process);
}

// --- the cipher alone, as TLS uses it.

int Encrypt(const std::string& mode, long bytes, int processes, int rounds) {
  constexpr int kRecord = 16 << 10;
  auto* together = Shared<Together>();
  const int process = Fork(processes);
  const long moved = 2 * (processes - 1) * (bytes / processes);
  std::vector<unsigned char> data(kRecord, 1), sealed(kRecord), opened(kRecord);
  const unsigned char key[16] = {1}, nonce[12] = {2};
  unsigned char tag[16];
  EVP_CIPHER_CTX* const seal = EVP_CIPHER_CTX_new();
  EVP_CIPHER_CTX* const open = EVP_CIPHER_CTX_new();
  MT_CHECK(EVP_EncryptInit_ex(seal, EVP_aes_128_gcm(), nullptr, key, nonce) == 1);
  MT_CHECK(EVP_DecryptInit_ex(open, EVP_aes_128_gcm(), nullptr, key, nonce) == 1);
  const auto run = [&] {
    for (long at = 0; at < moved; at += kRecord) {
      const int n = static_cast<int>(std::min<long>(kRecord, moved - at));
      int out = 0, last = 0;
      MT_CHECK(EVP_EncryptInit_ex(seal, nullptr, nullptr, nullptr, nonce) == 1 &&
               EVP_EncryptUpdate(seal, sealed.data(), &out, data.data(), n) == 1 &&
               EVP_EncryptFinal_ex(seal, sealed.data() + out, &last) == 1 &&
               EVP_CIPHER_CTX_ctrl(seal, EVP_CTRL_GCM_GET_TAG, sizeof tag, tag) == 1);
      MT_CHECK(EVP_DecryptInit_ex(open, nullptr, nullptr, nullptr, nonce) == 1 &&
               EVP_DecryptUpdate(open, opened.data(), &out, sealed.data(), n) == 1 &&
               EVP_CIPHER_CTX_ctrl(open, EVP_CTRL_GCM_SET_TAG, sizeof tag, tag) == 1 &&
               EVP_DecryptFinal_ex(open, opened.data() + out, &last) == 1);
    }
  };
  run();
  const Times times = Measure(*together, processes, rounds, bytes <= 65536, run);
  if (process == 0) Print(mode, processes, bytes, times);
  return Finish(process);
}

// --- the ring alone. Asking the system for all that is left of a part at once is the best way:
// pieces of 32 to 256 kB cost more calls and take up to 1.4 times as long.

void Tune(int fd, bool reno) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (reno) MT_CHECK(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) == 0);
}

int RawRing(const std::string& mode, long bytes, int processes, int rounds) {
  auto* together = Shared<Together>();
  const int process = Fork(processes);
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const bool reno = mode == "raw_ring_reno";
  Tune(listener, reno);  // what it accepts inherits
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  MT_CHECK(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
           listen(listener, 4) == 0);
  socklen_t length = sizeof address;
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  together->ports[process].store(ntohs(address.sin_port));
  together->Wait(processes);
  const int right = socket(AF_INET, SOCK_STREAM, 0);
  Tune(right, reno);
  address.sin_port =
      htons(static_cast<uint16_t>(together->ports[(process + 1) % processes].load()));
  MT_CHECK(connect(right, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  const int left = accept(listener, nullptr, nullptr);
  MT_CHECK(left >= 0);
  fcntl(right, F_SETFL, O_NONBLOCK);
  fcntl(left, F_SETFL, O_NONBLOCK);
  std::vector<char> data(bytes, 1);
  const long part = bytes / processes;
  const auto run = [&] {
    for (int step = 0; step < 2 * (processes - 1); ++step) {
      // What is received in a step is sent in the next.
      const char* out = data.data() + (process - step + 2 * processes) % processes * part;
      char* in = data.data() + (process - step - 1 + 2 * processes) % processes * part;
      long sent = 0, received = 0;
      while (sent < part || received < part) {
        bool moved = false;
        if (received < part) {
          const ssize_t n = recv(left, in + received, part - received, 0);
          MT_CHECK(n != 0);
          if (n > 0) {
            received += n;
            moved = true;
          }
        }
        if (sent < part) {
          const ssize_t n = send(right, out + sent, part - sent, MSG_NOSIGNAL);
          if (n > 0) {
            sent += n;
            moved = true;
          }
        }
        if (moved) continue;
        pollfd fds[2] = {{received < part ? left : -1, POLLIN, 0},
                         {sent < part ? right : -1, POLLOUT, 0}};
        poll(fds, 2, 1000);
      }
    }
  };
  run();
  const Times times = Measure(*together, processes, rounds, bytes <= 65536, run);
  if (process == 0) Print(mode, processes, bytes, times);
  return Finish(process);
}

}  // namespace
}  // namespace meshtrain::bench

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const long bytes = argc > 2 ? std::atol(argv[2]) : 16 << 20;
  const int processes = argc > 3 ? std::atoi(argv[3]) : 4;
  const int rounds = argc > 4 ? std::atoi(argv[4]) : (bytes <= 65536 ? 2000 : 25);
  if (mode == "raw_ring" || mode == "raw_ring_reno") {
    return meshtrain::bench::RawRing(mode, bytes, processes, rounds);
  }
  if (mode == "encrypt") return meshtrain::bench::Encrypt(mode, bytes, processes, rounds);
  if (mode == "shared" || mode == "shared_copy" || mode == "tcp" || mode == "sealed") {
    return meshtrain::bench::Ours(mode, bytes, processes, rounds);
  }
  std::fprintf(
      stderr,
      "collective_bench: expected a mode (shared, shared_copy, tcp, sealed, encrypt, raw_ring, "
      "raw_ring_reno), got: %s\n",
      mode.c_str());
  return 64;
}
