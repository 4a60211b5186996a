#pragma once
#include "meshtrain/v1/job.pb.h"
