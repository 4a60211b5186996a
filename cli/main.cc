// meshtrain: train a manifest here, see what it will cost, check it.
#include <iostream>

#include "cli/verbs.h"
#include "runtime/base/out_of_memory.h"
#include "runtime/cluster/contract.h"

int main(int argc, char** argv) {
  meshtrain::ExitWhereMemoryEnds("meshtrain", meshtrain::cluster::kExitBadConfig);
  return meshtrain::cli::RunCommand(argc, argv, {.out = std::cout, .err = std::cerr});
}
