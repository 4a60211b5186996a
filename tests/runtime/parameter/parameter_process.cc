// A server or a worker as a process of its own, for tests that kill it.
//
//   parameter_process ps PORT FOLDER THREADS       FOLDER "-": no log
//   parameter_process worker PORT THREADS
//
// Prints the port it listens at and lives until its standard input ends.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/runtime/parameter/cluster_testing.h"

namespace meshtrain::parameter {
namespace {

int WaitForTheEnd(int port) {
  std::printf("%d\n", port);
  std::fflush(stdout);
  char c = 0;
  while (::read(0, &c, 1) > 0) {
  }
  return 0;
}

int Run(int argc, char** argv) {
  if (argc == 5 && std::strcmp(argv[1], "ps") == 0) {
    StoreOptions store{.folder = std::strcmp(argv[3], "-") == 0 ? "" : argv[3],
                       .threads = std::atoi(argv[4])};
    const auto server =
        ParameterServer::Serve({std::atoi(argv[2]), TestIdentity(), std::move(store)});
    if (server.ok()) return WaitForTheEnd((*server)->port());
    std::fprintf(stderr, "parameter_process: %s\n", server.status().ToString().c_str());
    return 1;
  }
  if (argc == 4 && std::strcmp(argv[1], "worker") == 0) {
    WorkerOptions options{.port = std::atoi(argv[2]), .executor = {.identity = TestIdentity()}};
    options.executor.session.threads = std::atoi(argv[3]);
    const auto worker = WorkerServer::Serve(std::move(options));
    if (worker.ok()) return WaitForTheEnd((*worker)->port());
    std::fprintf(stderr, "parameter_process: %s\n", worker.status().ToString().c_str());
    return 1;
  }
  std::fprintf(stderr,
               "parameter_process: expected ps PORT FOLDER THREADS, or worker PORT THREADS\n");
  return 64;
}

}  // namespace
}  // namespace meshtrain::parameter

int main(int argc, char** argv) { return meshtrain::parameter::Run(argc, argv); }
