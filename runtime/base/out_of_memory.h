// What a program does where `new` finds no memory. std::bad_alloc would end it from whichever
// thread it is thrown in, as a crash.
#pragma once

namespace meshtrain {

// From now on the process says so on stderr, `program` in front, and leaves with `exit_code`. For a
// main alone. `program` must outlive the process.
void ExitWhereMemoryEnds(const char* program, int exit_code);

}  // namespace meshtrain
