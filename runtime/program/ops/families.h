// The registry's rows, by family; called once each by Registry::Standard().
#pragma once

namespace meshtrain::program {

class Registry;

void RegisterElementwiseOps(Registry& registry);
void RegisterLinearOps(Registry& registry);
void RegisterShapeOps(Registry& registry);
void RegisterCutOps(Registry& registry);
void RegisterGatherOps(Registry& registry);
void RegisterSortOps(Registry& registry);
void RegisterReduceOps(Registry& registry);
void RegisterIndexOps(Registry& registry);
void RegisterRandomOps(Registry& registry);
void RegisterWindowOps(Registry& registry);
void RegisterCollectiveOps(Registry& registry);

}  // namespace meshtrain::program
