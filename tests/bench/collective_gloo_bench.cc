// The same all-reduce with Gloo (libgloo-dev of Debian), for collective_bench to be read beside.
//   collective_gloo_bench MODE [BYTES] [PROCESSES] [ROUNDS]      MODE: gloo_ring gloo_bcube gloo_hd
//       gloo_chunked
// One algorithm a process: two of its generations on one context hang. It has no shared memory,
// only TCP.
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <filesystem>

#include "tests/bench/collective_bench.h"

using meshtrain::bench::Fork;
using meshtrain::bench::Measure;
using meshtrain::bench::Shared;
using meshtrain::bench::Times;
using meshtrain::bench::Together;

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const long bytes = argc > 2 ? std::atol(argv[2]) : 16 << 20;
  const int processes = argc > 3 ? std::atoi(argv[3]) : 4;
  const int rounds = argc > 4 ? std::atoi(argv[4]) : (bytes <= 65536 ? 2000 : 25);
  char folder[] = "/tmp/gloo.XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  auto* together = Shared<Together>();
  const int process = Fork(processes);
  {
    gloo::transport::tcp::attr where;
    where.hostname = "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(where);
    gloo::rendezvous::FileStore store(folder);
    auto context = std::make_shared<gloo::rendezvous::Context>(process, processes);
    context->connectFullMesh(store, device);
    const size_t count = bytes / 4;
    std::vector<float> data(count, 1.0f);
    std::vector<float*> pointers{data.data()};
    std::function<void()> run;
    gloo::AllreduceOptions options(context);
    options.setInputs(pointers, count);
    options.setOutputs(pointers, count);
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
    std::unique_ptr<gloo::Algorithm> algorithm;
    if (mode == "gloo_ring" || mode == "gloo_bcube") {
      options.setAlgorithm(mode == "gloo_ring" ? gloo::AllreduceOptions::Algorithm::RING
                                               : gloo::AllreduceOptions::Algorithm::BCUBE);
      run = [&] { gloo::allreduce(options); };
    } else if (mode == "gloo_hd" || mode == "gloo_chunked") {
      if (mode == "gloo_hd") {
        algorithm = std::make_unique<gloo::AllreduceHalvingDoubling<float>>(
            context, pointers, static_cast<int>(count));
      } else {
        algorithm = std::make_unique<gloo::AllreduceRingChunked<float>>(context, pointers,
                                                                        static_cast<int>(count));
      }
      run = [&] { algorithm->run(); };
    } else {
      std::fprintf(stderr, "collective_gloo_bench: no mode %s\n", mode.c_str());
      return 64;
    }
    run();
    for (const float x : data) {
      if (x != static_cast<float>(processes)) {
        std::fprintf(stderr, "%s: wrong sum %g\n", mode.c_str(), x);
        return 1;
      }
    }
    std::fill(data.begin(), data.end(), 0.0f);
    const Times times = Measure(*together, processes, rounds, bytes <= 65536, run);
    if (process == 0) meshtrain::bench::Print(mode, processes, bytes, times);
  }
  const int result = meshtrain::bench::Finish(process);
  std::filesystem::remove_all(folder);
  return result;
}
