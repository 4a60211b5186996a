// Manifests, good and bad, with what is to be said of them: for the checks in C++ (rules_test.cc)
// and for a real API server with our CRD (agreement_test.cc).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace meshtrain::api::cases {

inline std::string Template(std::string_view more = "") {
  return "template: {spec: {containers: [{name: t, image: i" + std::string(more) + "}]}}";
}

inline std::string Roles(const std::string& inner) { return "replicaSpecs: {" + inner + "}"; }
inline std::string One(const std::string& name, int replicas, const std::string& more = "") {
  return name + ": {replicas: " + std::to_string(replicas) + ", " + Template() + more + "}";
}

struct Case {
  std::string name;
  std::string spec;
  std::vector<std::string> want;
  std::string job = "mnist";
};

inline const Case kCases[] = {
    {"Plain", Roles(One("worker", 1)), {}},
    {"AllRoles",
     Roles(One("Chief", 1) + "," + One("Worker", 2) + "," + One("PS", 2) + "," +
           One("Evaluator", 1)),
     {}},
    {"NoWorkersBesideAChief", Roles(One("chief", 1) + "," + One("worker", 0)), {}},
    {"TwoChiefs",
     Roles(One("chief", 2)),
     {"spec.replicaSpecs.chief.replicas: must be at most 1, got: 2"}},
    {"TwoEvaluators",
     Roles(One("worker", 1) + "," + One("evaluator", 2)),
     {"spec.replicaSpecs.evaluator.replicas: must be at most 1, got: 2"}},
    {"NobodyToDecide",
     Roles(One("evaluator", 1)),
     {"spec.replicaSpecs: must have a chief or at least one worker: the job ends when it does"}},
    {"NoTemplate",
     Roles("worker: {}"),
     {"spec.replicaSpecs: must each have a template with at least one container where there is no "
      "program"}},
    {"CommandWithANumber",
     Roles("worker: {" + Template(", command: [sleep, 5], args: []") + "}"),
     {}},
    {"NoTemplateWithProgram", Roles("worker: {}") + ", program: {seed: 1}", {}},
    {"UpperCaseName",
     Roles(One("worker", 1)),
     {"metadata.name: must be a DNS label: lower case letters, digits and '-', beginning with a "
      "letter, got: Mnist"},
     "Mnist"},
    {"NameBeginsWithADigit",
     Roles(One("worker", 1)),
     {"metadata.name: must be a DNS label: lower case letters, digits and '-', beginning with a "
      "letter, got: 1abc"},
     "1abc"},
    {"NameAtTheLimit", Roles(One("worker", 1)), {}, std::string(54, 'a')},
    {"NameTooLongForItsPods",
     Roles(One("worker", 11)),
     {"metadata.name: must leave the longest name of its pods, NAME-ROLE-INDEX, within 63 "
      "characters, got: " +
      std::string(54, 'a') + "-worker-10 (64)"},
     std::string(54, 'a')},
    {"NameTooLongForPodsToCome",
     Roles(One("worker", 1)) + ", elastic: {minReplicas: 1, maxReplicas: 11}",
     {"metadata.name: must leave the longest name of its pods, NAME-ROLE-INDEX, within 63 "
      "characters, got: " +
      std::string(54, 'a') + "-worker-10 (64)"},
     std::string(54, 'a')},
    {"NameAtTheLimitInAnyCase", Roles(One("wOrKeR", 1)), {}, std::string(54, 'a')},
    {"NameTooLongForPodsToComeInAnyCase",
     Roles(One("WorKer", 1)) + ", elastic: {minReplicas: 1, maxReplicas: 11}",
     {"metadata.name: must leave the longest name of its pods, NAME-ROLE-INDEX, within 63 "
      "characters, got: " +
      std::string(54, 'a') + "-worker-10 (64)"},
     std::string(54, 'a')},
    {"AMasterIsAChiefInNamesToo", Roles(One("mASTER", 1)), {}, std::string(55, 'a')},
    {"NameTooLongForItsMaster",
     Roles(One("mAsTeR", 1)),
     {"metadata.name: must leave the longest name of its pods, NAME-ROLE-INDEX, within 63 "
      "characters, got: " +
      std::string(56, 'a') + "-chief-0 (64)"},
     std::string(56, 'a')},
    {"RuleOfRolesInAnyCase",
     Roles(One("worker", 1)) +
         ", failurePolicy: {rules: [{roles: [Worker, CHIEF, master], action: Fail}, {action: "
         "Restart}]}",
     {}},
    {"RuleOfAnUnknownRole",
     Roles(One("worker", 1)) +
         ", failurePolicy: {rules: [{action: Restart}, {roles: [worker, wroker], action: Fail}]}",
     {"spec.failurePolicy.rules[1].roles: must be chief, worker, ps or evaluator, got: "
      "\"wroker\""}},
    {"PsWithoutItsStrategy",
     Roles(One("worker", 1) + "," + One("ps", 1)) + ", strategy: Mirrored",
     {"spec.strategy: must be ParameterServer where there are ps replicas, got: Mirrored"}},
    {"StrategyWithoutPs",
     Roles(One("worker", 1)) + ", strategy: ParameterServer",
     {"spec.replicaSpecs.ps.replicas: must be at least 1 with the strategy ParameterServer, got: "
      "0"}},
    {"ServersWithoutAWorkerForTheProgram",
     Roles("chief: {}, ps: {}, worker: {replicas: 0}") +
         ", program: {seed: 1}, strategy: ParameterServer, elastic: {minReplicas: 0, maxReplicas: "
         "2}",
     {"spec.replicaSpecs.worker.replicas: must be at least 1 for a program with the strategy "
      "ParameterServer, whose workers compute the steps (runPolicy.suspend stops a job for a "
      "while), got: 0"}},
    {"ServersWithoutAWorkerForAnImage",
     Roles(One("chief", 1) + "," + One("ps", 1)) + ", strategy: ParameterServer",
     {}},
    {"MeshBesideAnotherStrategy",
     Roles("worker: {}") + ", program: {mesh: {batch: 2}}, strategy: Mirrored",
     {"spec.strategy: must be Mesh, or absent, with program.mesh: the other strategies take no "
      "mesh, got: Mirrored"}},
    {"MeshStrategyWithoutAMesh",
     Roles("worker: {}") + ", program: {seed: 1}, strategy: Mesh",
     {"spec.program.mesh: must be there with the strategy Mesh, got: nothing"}},
    {"ElasticUpsideDown",
     Roles(One("worker", 3)) + ", elastic: {minReplicas: 4, maxReplicas: 2}",
     {"spec.elastic.maxReplicas: must be at least minReplicas, got: 2 < 4",
      "spec.replicaSpecs.worker.replicas: must lie between elastic.minReplicas and "
      "elastic.maxReplicas, got: 3"}},
    {"ElasticOutside",
     Roles(One("worker", 9)) + ", elastic: {minReplicas: 1, maxReplicas: 8}",
     {"spec.replicaSpecs.worker.replicas: must lie between elastic.minReplicas and "
      "elastic.maxReplicas, got: 9"}},
    {"WaitsForNobody",
     Roles(One("worker", 1)) + ", waitForEvaluator: true",
     {"spec.waitForEvaluator: must be false without an evaluator, got: true"}},
    {"ManagedByKueue",
     Roles(One("worker", 1)) + ", runPolicy: {managedBy: kueue.x-k8s.io/multikueue}",
     {}},
    {"ManagedByNobodyKnown",
     Roles(One("worker", 1)) + ", runPolicy: {managedBy: example.com/typo}",
     {"spec.runPolicy.managedBy: must be meshtrain.dev/operator or kueue.x-k8s.io/multikueue: no "
      "other controller is known, so nobody would run the job, got: example.com/typo"}},
    {"AnEmptyImage",
     Roles("worker: {template: {spec: {containers: [{name: t, image: ''}]}}}"),
     {"spec.replicaSpecs.worker.template.spec.containers[0].image: should be at least 1 chars "
      "long, got: \"\""}},
    {"WindowWithoutLimit",
     Roles(One("worker", 1)) + ", runPolicy: {backoffWindowSeconds: 5}",
     {"spec.runPolicy.backoffLimit: must be there with backoffWindowSeconds"}},
    {"WindowWithTooLargeALimit",
     Roles(One("worker", 1)) + ", runPolicy: {backoffWindowSeconds: 5, backoffLimit: 32}",
     {"spec.runPolicy.backoffLimit: must be below 32 with backoffWindowSeconds, got: 32"}},
    {"BudgetTooLargeForAWindow",
     Roles("worker: {restartBudget: {limit: 32, windowSeconds: 9}, " + Template() + "}"),
     {"spec.replicaSpecs: must have limits below 32 in restartBudgets with windowSeconds"}},
    {"GangLargerThanTheJob",
     Roles(One("worker", 2)) + ", runPolicy: {schedulingPolicy: {minAvailable: 3}}",
     {"spec.runPolicy.schedulingPolicy.minAvailable: must be at most the number of all replicas, "
      "got: 3"}},
    {"MoreHostsThanAFileHolds",
     Roles(One("worker", 10000)),
     {"spec.replicaSpecs: must keep the list of all hosts within 1,000,000 bytes, got: 1460000"},
     "a-job-with-a-name-of-forty-letters-or-so"},
    {"ClaimsAndOutput",
     Roles("worker: {}") +
         ", program: {seed: 1}, claims: [{name: digits, path: data}, {name: digits, path: "
         "/mnt/all, subPath: a/b, readOnly: false}], output: {claim: runs, folder: team/mnist}",
     {}},
    {"AClaimsPathWithDots",
     Roles("worker: {}") + ", program: {seed: 1}, claims: [{name: a, path: ../data}]",
     {"spec.claims: must have paths without '.', '..', ':' and empty parts, got: ../data"}},
    {"AClaimsPathWithAnEmptyPart",
     Roles("worker: {}") + ", program: {seed: 1}, claims: [{name: a, path: data//x}]",
     {"spec.claims: must have paths without '.', '..', ':' and empty parts, got: data//x"}},
    {"AClaimsSubPathOutside",
     Roles("worker: {}") + ", program: {seed: 1}, claims: [{name: a, path: data, subPath: /x}]",
     {"spec.claims: must have subPaths below the volume, without '.', '..', ':' and empty parts, "
      "got: /x"}},
    {"AClaimWhereTheJobWrites",
     Roles("worker: {}") + ", program: {seed: 1}, claims: [{name: a, path: /work/output}]",
     {"spec.claims: must leave output, /tmp, /work and /etc/meshtrain to the job, got: "
      "/work/output"}},
    {"TwoClaimsAtOnePath",
     Roles("worker: {}") +
         ", program: {seed: 1}, claims: [{name: a, path: data}, {name: b, path: data}]",
     {"spec.claims: must each have a path of its own, got: data"}},
    {"AnOutputOutsideItsClaim",
     Roles("worker: {}") + ", program: {seed: 1}, output: {claim: runs, folder: a/../../b}",
     {"spec.output.folder: must be a folder below the volume, without '.', '..', ':' and empty "
      "parts, got: a/../../b"}},
    {"AClaimToMakeWithoutAPlace",
     Roles("worker: {}") + ", program: {seed: 1}, checkpoint: {volumeClaimTemplate: {spec: {}}}",
     {"spec.checkpoint.path: must be there with volumeClaimTemplate, whose volume is mounted at "
      "it"}},
    {"CheckpointsWithoutAPath",
     Roles("worker: {}") + ", program: {seed: 1}, checkpoint: {everySteps: 5}",
     {}},
    {"UnknownFieldAndRule",
     Roles(One("chief", 2)) + ", stategy: Mesh",
     {"spec.stategy: is not a field, did you mean `strategy`?",
      "spec.replicaSpecs.chief.replicas: must be at most 1, got: 2"}},
};

// A manifest of the job `spec` in YAML.
inline std::string Manifest(const std::string& spec, const std::string& name) {
  return "apiVersion: meshtrain.dev/v1\nkind: TrainingJob\nmetadata: {name: " + name +
         ", namespace: default}\nspec: {" + spec + "}";
}

}  // namespace meshtrain::api::cases
