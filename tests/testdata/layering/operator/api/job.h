#pragma once
#include "runtime/recipe/recipe.h"
