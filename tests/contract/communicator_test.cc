#include <functional>
#include <thread>

#include "runtime/base/check.h"
#include "runtime/collective/local.h"
#include "runtime/collective/thread_parties.h"
#include "tests/contract/communicator_suite.h"
#include "tests/support/tls_contexts.h"

namespace meshtrain::collective {
namespace {

using Body = std::function<std::string(Member&)>;

CommunicatorFactory Local() {
  return {"local", 1, [](int processes, const Body& body) {
            MT_CHECK(processes == 1);
            Member member;
            member.make = [](const mesh::Mesh& mesh) { return MakeLocalCommunicator(mesh); };
            return std::vector<std::string>{body(member)};
          }};
}

// `host_of`: the hosts of up to four processes, as digits.
CommunicatorFactory Processes(const std::string& name, bool forked, bool shared_memory,
                              const std::string& host_of, bool sealed = false) {
  return {name, 4, [=](int processes, const Body& body) {
            ProcessesOptions options;
            options.processes = processes;
            options.forked = forked;
            options.shared_memory = shared_memory;
            for (int p = 0; p < processes; ++p) {
              options.hosts.push_back(std::string("host-") + host_of[p]);
            }
            if (sealed) {
              options.adjust_options = [tls = testing_support::NewTlsContext()](
                                           int, FabricOptions& o) { o.tls = tls; };
            }
            return RunProcesses(options, body);
          }};
}

// Each "process" is a party that meets the others in this one.
CommunicatorFactory Meetings() {
  return {"thread_parties", 4, [](int processes, const Body& body) {
            std::vector<std::string> names;
            for (int p = 0; p < processes; ++p) names.push_back(WorkerName(p));
            ThreadParties thread_parties(names);
            std::vector<std::string> said(processes);
            {
              std::vector<std::jthread> threads;
              for (int p = 0; p < processes; ++p) {
                threads.emplace_back([&, p] {
                  Member member;
                  member.process = p;
                  member.processes = processes;
                  member.make = [&](const mesh::Mesh& mesh) {
                    return thread_parties.Join(p, mesh.LocalRanks(p),
                                               std::hash<std::string>()(mesh.ToString()),
                                               MakeLocalCommunicator(mesh));
                  };
                  said[p] = body(member);
                });
              }
            }
            return said;
          }};
}

INSTANTIATE_TEST_SUITE_P(Local, CommunicatorSuite, ::testing::Values(Local()), FactoryName);
INSTANTIATE_TEST_SUITE_P(ThreadParties, CommunicatorSuite, ::testing::Values(Meetings()),
                         FactoryName);
INSTANTIATE_TEST_SUITE_P(Shared, CommunicatorSuite,
                         ::testing::Values(Processes("threads", false, true, "0000"),
                                           Processes("children", true, true, "0000")),
                         FactoryName);
INSTANTIATE_TEST_SUITE_P(Tcp, CommunicatorSuite,
                         ::testing::Values(Processes("threads", false, false, "0000"),
                                           Processes("children", true, true, "0123")),
                         FactoryName);
INSTANTIATE_TEST_SUITE_P(Sealed, CommunicatorSuite,
                         ::testing::Values(Processes("threads", false, false, "0000",
                                                     /*sealed=*/true)),
                         FactoryName);
INSTANTIATE_TEST_SUITE_P(Hierarchical, CommunicatorSuite,
                         ::testing::Values(Processes("pairs", false, true, "0011"),
                                           Processes("pairs_of_children", true, true, "0011"),
                                           Processes("in_turn", false, true, "0101"),
                                           Processes("three_and_one", false, true, "0001")),
                         FactoryName);

}  // namespace
}  // namespace meshtrain::collective
