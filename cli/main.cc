// meshtrain: train a manifest here, see what it will cost, check it.
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string_view>

#include "cli/verbs.h"
#include "runtime/base/out_of_memory.h"
#include "runtime/cluster/contract.h"

int main(int argc, char** argv) {
  meshtrain::ExitWhereMemoryEnds("meshtrain", meshtrain::cluster::kExitBadConfig);
  // no-color.org
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  const bool color = ::isatty(STDOUT_FILENO) == 1 && (no_color == nullptr || *no_color == '\0') &&
                     terminal != nullptr && std::string_view(terminal) != "dumb";
  return meshtrain::cli::RunCommand(
      argc, argv, {.out = std::cout, .err = std::cerr, .in = std::cin, .color = color});
}
