// The ways to sum over devices of one process that tf.distribute names keep what every communicator
// keeps.
#include "runtime/strategy/cross_device.h"

#include "runtime/base/check.h"
#include "tests/contract/communicator_suite.h"

namespace meshtrain::collective {
namespace {

using strategy::CrossDeviceOps;

CommunicatorFactory Way(const std::string& name, CrossDeviceOps ops) {
  return {name, 1, [ops](int processes, const std::function<std::string(Member&)>& body) {
            MT_CHECK(processes == 1);
            Member member;
            member.make = [ops](const mesh::Mesh& mesh) {
              return strategy::MakeCrossDeviceCommunicator(mesh, ops);
            };
            return std::vector<std::string>{body(member)};
          }};
}

INSTANTIATE_TEST_SUITE_P(
    CrossDevice, CommunicatorSuite,
    ::testing::Values(Way("hierarchical_copy", CrossDeviceOps::kHierarchicalCopy),
                      Way("reduction_to_one_device", CrossDeviceOps::kReductionToOneDevice),
                      Way("ring", CrossDeviceOps::kRing)),
    FactoryName);

}  // namespace
}  // namespace meshtrain::collective
