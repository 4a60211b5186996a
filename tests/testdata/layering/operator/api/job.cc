#include "operator/api/job.h"
#include "meshtrain/v1/job.pb.h"
#include "operator/kube/client.h"
