#include "runtime/mesh/mesh.h"
#include "shape.h"
#include <thread>
  #  include <unordered_map>
