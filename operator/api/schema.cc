// Long: one table of all fields, read from top to bottom.
#include "operator/api/schema.h"

#include "runtime/cluster/contract.h"
#include "runtime/manifest/fields/fields.h"

namespace meshtrain::api {
namespace {

using enum FieldType;

Field Text(std::string_view name, std::string_view description, int64_t max_size = 1024) {
  return {.name = name, .type = kString, .description = description, .max_size = max_size};
}
Field OneOf(std::string_view name, std::string_view description,
            std::vector<std::string_view> values, std::string_view default_json = "") {
  return {.name = name,
          .type = kString,
          .description = description,
          .default_json = default_json,
          .values = std::move(values)};
}
Field Int32(std::string_view name, std::string_view description,
            std::optional<int64_t> minimum = std::nullopt,
            std::optional<int64_t> maximum = std::nullopt) {
  return {.name = name,
          .type = kInt32,
          .description = description,
          .minimum = minimum,
          .maximum = maximum};
}
Field Int64(std::string_view name, std::string_view description,
            std::optional<int64_t> minimum = std::nullopt) {
  return {.name = name, .type = kInt64, .description = description, .minimum = minimum};
}
Field Number(std::string_view name, std::string_view description) {
  return {.name = name, .type = kNumber, .description = description};
}
Field Time(std::string_view name, std::string_view description) {
  return {.name = name, .type = kTime, .description = description};
}
Field Object(std::string_view name, std::string_view description, std::vector<Field> fields) {
  return {.name = name, .type = kObject, .description = description, .fields = std::move(fields)};
}
Field Open(std::string_view name, std::string_view description, std::vector<Field> fields = {}) {
  return {.name = name,
          .type = kObject,
          .description = description,
          .fields = std::move(fields),
          .open = true};
}
Field Array(std::string_view name, std::string_view description, Field item, int64_t max_size) {
  return {.name = name,
          .type = kArray,
          .description = description,
          .fields = {std::move(item)},
          .max_size = max_size};
}
Field Map(std::string_view name, std::string_view description, Field value, int64_t max_size) {
  return {.name = name,
          .type = kMap,
          .description = description,
          .fields = {std::move(value)},
          .max_size = max_size};
}
Field With(Field field, std::string_view default_json) {
  field.default_json = default_json;
  return field;
}
Field NotEmpty(Field field) {
  field.min_size = 1;
  return field;
}
Field Required(Field field) {
  field.required = true;
  return field;
}

Field InPlaceTally(std::string_view name, std::string_view description) {
  return Object(name, description,
                {
                    Int32("told", "By pods that are there, less what `lost` joins."),
                    Int32("past", "By pods that are gone."),
                    Array("lost", "Incarnations that several pods left with 138 for.",
                          Object("", "One incarnation.",
                                 {
                                     Required(Text("incarnation", "Its name.", 64)),
                                     Int32("pods", "The most pods that told of it at once."),
                                 }),
                          3),
                });
}

constexpr int64_t kMaxReplicas = 10'000;

// Numbers among them are Kubernetes' to refuse, when the pod is made.
Field Words(std::string_view name, std::string_view description) {
  return Array(name, description, {.name = "", .type = kAny, .description = "A text."}, 10'000);
}

// Only what rules read and what `meshtrain run` starts; Kubernetes checks the rest when the pod is
// made.
Field PodTemplateField() {
  return Open(
      "template",
      "The pods to create, as a PodTemplateSpec. Its restartPolicy is replaced by the replica "
      "spec's. The container "
      "that trains is called trainer, else tensorflow, else it is the first. May be left out with "
      "a program.",
      {
          Open("metadata", "Labels and annotations of the pods."),
          Open("spec", "The PodSpec.",
               {
                   Array("containers", "The pod's containers.",
                         Open("", "A container.",
                              {
                                  Text("name", "The container's name.", 63),
                                  NotEmpty(Text("image", "The image to run.", 4096)),
                                  Words("command",
                                        "The program and its first arguments, in the place of the "
                                        "image's entry point."),
                                  Words("args", "The arguments behind the command."),
                                  Array("ports", "Ports that the container listens on.",
                                        Open("",
                                             "A port. tfjob-port (2222 where absent) is the one in "
                                             "TF_CONFIG.",
                                             {
                                                 Text("name", "The port's name.", 63),
                                                 Int32("containerPort", "The port's number.", 1,
                                                       65535),
                                             }),
                                        1000),
                                  Array("env",
                                        "Environment variables. A TF_CONFIG given here wins over "
                                        "the operator's.",
                                        Open("", "A variable.",
                                             {Text("name", "The variable's name.", 4096)}),
                                        10'000),
                              }),
                         100),
                   Text("restartPolicy", "Replaced by the replica spec's restartPolicy.", 63),
                   Text("schedulerName", "The scheduler of the pods; kept under gang scheduling.",
                        253),
               }),
      });
}

Field ReplicaSpecField() {
  return Object(
      "", "The processes of one role.",
      {
          With(Int32("replicas",
                     "How many processes this role has. At most one for chief and evaluator.", 0,
                     kMaxReplicas),
               "1"),
          OneOf("restartPolicy",
                "What happens when a process ends with an error. Never: the job fails. OnFailure, "
                "Always: it is "
                "restarted. ExitCode: codes 1-127 fail the job except 74; 74 and codes from 128 "
                "restart it except 134 "
                "and 139. Evicted, drained and preempted pods are always made again.",
                {"Always", "OnFailure", "Never", "ExitCode"}, "\"Never\""),
          PodTemplateField(),
          Object(
              "restartBudget", "A limit on this role's restarts, beside runPolicy.backoffLimit.",
              {
                  Required(
                      Int32("limit", "How many restarts are allowed before the job fails.", 0)),
                  Int64("windowSeconds",
                        "Count only restarts within so many seconds. Absent: over the job's life.",
                        1),
              }),
      });
}

Field RunPolicyField() {
  return With(
      Object(
          "runPolicy", "How the job runs, ends and is cleaned up.",
          {
              OneOf("cleanPodPolicy",
                    "Which pods are deleted when the job has ended: All, those still Running, or "
                    "None.",
                    {"All", "Running", "None"}, "\"None\""),
              Int64("ttlSecondsAfterFinished",
                    "Delete the job so many seconds after its end. Absent: keep it.", 0),
              Int64("activeDeadlineSeconds",
                    "Fail the job when it was active for so many seconds; time spent suspended "
                    "does not count.",
                    1),
              Int64("startupDeadlineSeconds",
                    "Fail the job when it is not running so many seconds after its start.", 1),
              Int64("progressDeadlineSeconds",
                    "Set the condition Stalled when the step stands still for so many seconds. "
                    "Absent: ten times the "
                    "job's own usual step time, at least 60 s.",
                    1),
              Int64("deadNodeSeconds",
                    "Replace a pod by force when its node was not heard of for so many seconds. A "
                    "node that is only cut off may still run the old process, beside the new one. "
                    "Absent: only when the Node is deleted, or tainted "
                    "node.kubernetes.io/out-of-service.",
                    0),
              Int64("peerReturnSeconds",
                    "How long the other processes of a program wait for the return of a lost one "
                    "before they leave "
                    "themselves, to be restarted. 0: not at all. Absent: 120.",
                    0),
              Int32("backoffLimit",
                    "How many restarts are allowed before the job fails; disruptions (eviction, "
                    "drain, preemption) do "
                    "not count, and one incident counts once. Absent: no limit.",
                    0),
              Int64("backoffWindowSeconds",
                    "backoffLimit counts only restarts within so many seconds.", 1),
              With(
                  Field{
                      .name = "suspend",
                      .type = kBoolean,
                      .description =
                          "True: delete the pods and wait. False: run, from the last checkpoint."},
                  "false"),
              Text("managedBy",
                   "Who manages the job. Absent or meshtrain.dev/operator: this operator. "
                   "kueue.x-k8s.io/multikueue: Kueue runs it in another cluster, and this "
                   "operator leaves it alone. Immutable.",
                   253),
              Object("schedulingPolicy", "Gang scheduling: all pods at once or none.",
                     {
                         Int32("minAvailable", "The pods that must fit at once. Absent: all.", 0),
                         Text("queue", "The queue that the gang waits in. Immutable.", 253),
                         Text("priorityClass", "The PriorityClass of the gang.", 253),
                         Map("minResources",
                             "The resources that must be free. Absent: the requests of "
                             "minAvailable pods.",
                             Field{.name = "",
                                   .type = kQuantity,
                                   .description = "A quantity such as 500m or 2Gi."},
                             100),
                         Int32("scheduleTimeoutSeconds",
                               "How long the scheduler tries before it gives up.", 0),
                     }),
          }),
      "{}");
}

// Names and descriptions of the manifest's rows. What may stand in a field the operator says, with
// the nearest name; here only what rules read has a type.
std::vector<Field> ProgramFields(const std::vector<manifest::Field>& rows) {
  std::vector<Field> fields;
  for (const manifest::Field& row : rows) {
    if (row.name == "mesh") {
      fields.push_back(Open(row.name, row.says.about));
      continue;
    }
    fields.push_back({.name = row.name, .type = kAny, .description = row.says.about});
  }
  return fields;
}

}  // namespace

const Field& SpecField() {
  static const Field kSpec = Required(Object(
      "spec", "What to train and how.",
      {
          Required(Map("replicaSpecs",
                       "The processes of the job by role: chief, worker, ps, evaluator, in any "
                       "case; Master is "
                       "another word for chief. kubectl scale acts on the key worker.",
                       ReplicaSpecField(), 8)),
          OneOf("strategy",
                "How training is distributed. Mesh is the default with program.mesh; the others "
                "take no mesh. Absent "
                "without a program: the image decides. Immutable.",
                {"Mesh", "Default", "OneDevice", "Mirrored", "CentralStorage",
                 "MultiWorkerMirrored", "ParameterServer", "TPU"}),
          Open("program",
               "What Meshtrain's worker image trains: data, model, loss, optimizer, layout. "
               "Absent: the image brings "
               "its own program.",
               ProgramFields(manifest::ProgramFields())),
          Array("claims",
                "PersistentVolumeClaims that are there already, mounted in every replica. With "
                "meshtrain run each is the folder at its path.",
                Object("", "A claim.",
                       {
                           Required(NotEmpty(Text("name", "The claim's name.", 253))),
                           Required(NotEmpty(
                               Text("path",
                                    "Where it is mounted: an absolute path, or one below the "
                                    "working directory, from which the program's paths begin.",
                                    1024))),
                           Text("subPath", "The folder of the volume to mount. Absent: all of it.",
                                1024),
                           With(Field{.name = "readOnly",
                                      .type = kBoolean,
                                      .description = "Whether pods may only read it."},
                                "true"),
                       }),
                16),
          Object("output",
                 "Where metrics, events, report, model and checkpoints go. Absent: they go with "
                 "the pods. Immutable.",
                 {
                     Required(NotEmpty(Text("claim",
                                            "The name of a PersistentVolumeClaim that is there "
                                            "already.",
                                            253))),
                     Text("folder",
                          "The folder in the claim's volume, made where it is absent. Absent: the "
                          "job's name.",
                          1024),
                 }),
          Object(
              "checkpoint", "Where checkpoints go and how often.",
              {
                  NotEmpty(Text("path",
                                "The directory that every process sees. Absent: checkpoints in "
                                "the output folder.",
                                4096)),
                  Open("volumeClaimTemplate",
                       "A PersistentVolumeClaim to create for the job and to mount at path. It "
                       "goes with the job."),
                  Int64(
                      "everySteps",
                      "Save after so many steps. Absent: after each epoch, and every ten minutes.",
                      1),
                  Int32("keep", "Keep so many of the newest checkpoints.", 1),
                  OneOf("resume",
                        "Latest: go on from the newest complete checkpoint. Never: start afresh.",
                        {"Latest", "Never"}, "\"Latest\""),
              }),
          RunPolicyField(),
          OneOf("successPolicy",
                "Empty: the job succeeds with its chief, else with worker 0. AllWorkers: when the "
                "chief, where there "
                "is one, and all workers have succeeded.",
                {"", "AllWorkers"}, "\"\""),
          OneOf("security",
                "How processes that run a program speak to each other, for control as for tensors. "
                "mutualTLS: sealed, with certificates of the job's own. none: anybody on the way "
                "can read them. Empty: mutualTLS in a cluster, none with `meshtrain run`.",
                {"", "mutualTLS", "none"}, ""),
          With(Field{.name = "waitForEvaluator",
                     .type = kBoolean,
                     .description = "Whether success also waits for the evaluator to succeed."},
               "false"),
          Object("failurePolicy", "What to do with pods that fail, before restartPolicy is asked.",
                 {Required(
                     Array("rules", "The first rule that matches decides.",
                           Object("", "Matches when each list that is given holds the pod's value.",
                                  {
                                      Array("roles", "Roles of the pod. Absent: any.",
                                            Text("", "A role, in any case.", 16), 8),
                                      Array("exitCodes",
                                            "Exit codes of the training container. Absent: any.",
                                            Int32("", "An exit code.", 0, 255), 256),
                                      Array("reasons",
                                            "Reasons of the end, such as OOMKilled or Evicted. "
                                            "Absent: any but a disruption's.",
                                            Text("", "A reason.", 128), 32),
                                      Required(OneOf("action",
                                                     "Restart the pod, restart all pods, fail the "
                                                     "job, or ignore the failure.",
                                                     {"Restart", "RestartAll", "Fail", "Ignore"})),
                                  }),
                           32))}),
          Object("elastic", "Lets the number of workers change while the job runs (kubectl scale).",
                 {
                     Required(Int32("minReplicas", "The fewest workers.", 0, kMaxReplicas)),
                     Required(Int32("maxReplicas", "The most workers.", 1, kMaxReplicas)),
                 }),
          Object("tfConfig", "The form of TF_CONFIG.",
                 {OneOf("compat",
                        "kubeflow-v1: host names and strings as TFJob wrote them, with a Service "
                        "per replica. "
                        "Immutable.",
                        {"", "kubeflow-v1"}, "\"\"")}),
      }));
  return kSpec;
}

const Field& StatusField() {
  static const Field kStatus = Object(
      "status", "What the operator last saw.",
      {
          Array("conditions",
                "Created, Running, Restarting, Suspended, Succeeded, Failed, Waiting, Stalled, "
                "Straggling.",
                Object("", "One condition.",
                       {
                           Required(Text("type", "The condition's name.", 64)),
                           Required(
                               OneOf("status", "Whether it holds.", {"True", "False", "Unknown"})),
                           Text("reason", "One word for the cause.", 128),
                           Text("message", "The cause in one line.", 4096),
                           Int64("observedGeneration",
                                 "The metadata.generation that this was said about."),
                           Time("lastTransitionTime", "When status last changed."),
                       }),
                16),
          Text("phase", "The most telling condition, in one word.", 64),
          Text("ready", "Pods running or done, of those wanted.", 64),
          Int32("restarts", "Restarts of all roles together."),
          Map("replicaStatuses", "Counts by role.",
              Object("", "The pods of one role.",
                     {
                         Int32("replicas", "Pods that exist and are wanted."),
                         Int32("active", "Pods that run."),
                         Int32("succeeded", "Pods that ended well."),
                         Int32("failed", "Pods that ended with an error."),
                         Int32("restarts", "Pods made again, and containers restarted in place."),
                     }),
              8),
          Text("labelSelector", "Selects the job's pods.", 1024),
          Text("security", "What an empty spec.security meant when the job began.", 16),
          Int64("observedGeneration", "The metadata.generation that this status is about."),
          Time("startTime", "When the job started, or was last resumed."),
          Time("completionTime", "When the job ended."),
          Time("lastReconcileTime", "When this status was written."),
          Number("activeSecondsBefore", "Active time before the last suspension."),
          Object("progress", "How far training is.",
                 {
                     Int64("step", "Steps done."),
                     Int64("totalSteps", "Steps in all."),
                     Number("epoch", "Passes over the data."),
                     Number("loss", "The last loss."),
                     Number("accuracy", "The last accuracy."),
                     Number("examplesPerSecond", "Examples per second over all processes."),
                     Int64("etaSeconds", "Seconds until the end, by the present speed."),
                     Text("percent", "step of totalSteps, for the PROGRESS column.", 16),
                     Time("observedAt", "When the chief was asked."),
                     Time("advancedAt", "When the step last moved."),
                     Number("secondsPerStep", "The job's usual step time."),
                     Object("slowest",
                            "The process whose own share of a step takes longest, of at least two.",
                            {
                                Text("replica", "ROLE-INDEX.", 64),
                                Number("seconds", "Of its last step, without waiting for others."),
                                Number("medianSeconds", "Of all processes."),
                            }),
                 }),
          Object("plan", "What the worker's planner decided.",
                 {
                     Text("mesh", "The mesh.", 1024),
                     Int64("peakBytesPerDevice", "Peak memory of the fullest device."),
                     Int64("collectiveBytesPerStep", "Bytes that collectives move in a step."),
                     Text("hash", "The plan's hash, equal on all processes.", 128),
                 }),
          Object("checkpoint", "The newest complete checkpoint.",
                 {
                     Int64("step", "The step it was saved at."),
                     Text("path", "Where it lies.", 4096),
                 }),
          Array("worst", "At most ten pods in trouble, now or when they last ended.",
                Object("", "A pod.",
                       {
                           Required(Text("pod", "The pod's name.", 253)),
                           Int32("exitCode", "How the training container ended."),
                           Text("reason", "Why.", 128),
                           Text("lastLine", "The last line it had to say.", 512),
                       }),
                10),
          Text("whatToDo", "What the user can do about what holds the job up.", 512),
          Object(
              "recovery", "The operator's memory of restarts.",
              {
                  Int32("attempt",
                        "Grows with each incident; pods carry the attempt that they were made in."),
                  Int32("restartAllBelow", "Pods of an earlier attempt than this are made again."),
                  Int32("counted", "Incidents that count against backoffLimit."),
                  Int32("disruptions",
                        "Incidents that do not: evictions, drains, preemptions, lost pods."),
                  Map("countedByRole", "Counted incidents by role.", Int32("", "Incidents."), 8),
                  Map("incidentsByRole", "Incidents by role, disruptions included.",
                      Int32("", "Incidents."), 8),
                  Array("recent", "The newest incidents.",
                        Object("", "An incident.",
                               {
                                   Required(Time("at", "When.")),
                                   Required(Text("role", "The role that failed.", 16)),
                                   Field{.name = "counted",
                                         .type = kBoolean,
                                         .description = "Whether it counts against backoffLimit."},
                                   Field{.name = "inPlace",
                                         .type = kBoolean,
                                         .description = "Whether the kubelet restarted it."},
                               }),
                        32),
                  InPlaceTally("inPlace", "Containers restarted in place, of all roles."),
                  Map("inPlaceByRole", "Containers restarted in place, by role.",
                      InPlaceTally("", "Of one role."), 8),
                  Array("outOfMemory", "Replicas whose last end was OOMKilled.",
                        Object("", "A replica.",
                               {
                                   Required(Text("replica", "ROLE-INDEX.", 64)),
                                   Required(
                                       Int32("attempt", "The attempt of the pod that was killed.")),
                               }),
                        32),
                  Array("lostIncarnations",
                        "Lost incarnations that processes left with 138 for, and that were "
                        "counted.",
                        Text("", "An incarnation.", 64), 3),
                  Time("newestPod", "When the newest pod was made, as the end was recorded."),
              }),
          Object("goodput", "Where the time since the start went.",
                 {
                     Number("waitingSeconds",
                            "Seconds until the job first ran, after a start or a resumption."),
                     Number("runningSeconds", "Seconds in which the job ran."),
                     Number("restartingSeconds", "Seconds spent on restarts."),
                     Int64("lostSteps", "Steps that were done twice."),
                     Number("ratio", "The share of the time that moved training on."),
                 }),
      });
  return kStatus;
}

}  // namespace meshtrain::api
