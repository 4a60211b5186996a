#include "runtime/base/check.h"
#include "runtime/collective/local.h"
#include "tests/contract/communicator_suite.h"

namespace meshtrain::collective {
namespace {

INSTANTIATE_TEST_SUITE_P(Local, CommunicatorSuite,
                         testing::Values(CommunicatorFactory{
                             "local", 1,
                             [](const mesh::Mesh& mesh, int processes) {
                               MT_CHECK(processes == 1);
                               std::vector<std::unique_ptr<Communicator>> made;
                               made.push_back(MakeLocalCommunicator(mesh));
                               return made;
                             }}),
                         FactoryName);

}  // namespace
}  // namespace meshtrain::collective
