#include "runtime/base/out_of_memory.h"

#include <unistd.h>

#include <cstring>
#include <new>

namespace meshtrain {
namespace {

// Set once, before threads exist; a handler is told nothing.
const char* saying = "";
int leaving_with = 1;

void Leave() {
  constexpr char kWhy[] = ": expected memory on this machine, got: none\n";
  // Nothing is left to be done where stderr is closed.
  static_cast<void>(!write(STDERR_FILENO, saying, std::strlen(saying)));
  static_cast<void>(!write(STDERR_FILENO, kWhy, sizeof kWhy - 1));
  _exit(leaving_with);
}

}  // namespace

void ExitWhereMemoryEnds(const char* program, int exit_code) {
  saying = program;
  leaving_with = exit_code;
  std::set_new_handler(Leave);
}

}  // namespace meshtrain
