// A program outside the tree: a weight, split over eight virtual devices, meets its goal.
#include <cstdio>

#include "runtime/meshtrain.h"

namespace {

using namespace meshtrain;           // NOLINT: reads like a user's program
using namespace meshtrain::program;  // NOLINT

Status Main() {
  MT_ASSIGN_OR_RETURN(const Mesh mesh, CreateMesh({{"batch", 4}, {"model", 2}}));
  MT_ASSIGN_OR_RETURN(const Layout split, Layout::FromSpecs({UNSHARDED, "model"}, mesh));
  MT_ASSIGN_OR_RETURN(const Layout rows, Layout::FromSpecs({"batch", UNSHARDED}, mesh));
  MT_ASSIGN_OR_RETURN(const auto session, Session::Create());
  MT_ASSIGN_OR_RETURN(const DVariable w, DVariable::Create(*session, "w", split, [] {
                        return Zeros({4, 6});
                      }));
  MT_ASSIGN_OR_RETURN(const DTensor x, CallWithLayout(*session, rows, [] { return Ones({8, 4}); }));
  Function step(*session, "step", {"x"}, [&](const Value& in) -> Outputs {
    const Value loss = ReduceMean(Square(MatMul(in, w) - 1.0));
    const auto gradients = Gradient(loss, std::vector<Variable>{w});
    AssignSub(w, 1.0 * gradients[0]);
    return {{"loss", loss}, {"y", MatMul(in, w)}};
  });
  for (int i = 0; i < 40; ++i) MT_RETURN_IF_ERROR(step(x).status());
  MT_ASSIGN_OR_RETURN(const Results results, step(x));
  MT_ASSIGN_OR_RETURN(const Tensor loss, results["loss"].Whole());
  std::printf("loss %.4f, y %s\n", loss.Item(), results["y"].layout().ToString().c_str());
  return OkStatus();
}

}  // namespace

int main() { return RunMain("outside", Main()); }
