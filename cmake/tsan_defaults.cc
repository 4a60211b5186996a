// What ThreadSanitizer is told, in every program of the preset `tsan`: also in processes that a
// test's processes start with an environment of their own.
// Format: github.com/google/sanitizers/wiki/ThreadSanitizerSuppressions

// Libraries of the system were built without ThreadSanitizer: it does not see how they synchronise.
extern "C" const char* __tsan_default_options() { return "ignore_noninstrumented_modules=1"; }

// Nor does gRPC wait at exit for every thread of its pools.
// The last ones are their headers' part of a call: what it writes before the library has the call,
// and reads when the library is done with it.
extern "C" const char* __tsan_default_suppressions() {
  return "race:libgrpc\n"
         "race:libgpr\n"
         "race:libabsl_\n"
         "mutex:libgrpc\n"
         "thread:libgpr\n"
         "race:grpc::internal::CallOp\n"
         "race:grpc::internal::InterceptorBatchMethodsImpl\n"
         "race_top:grpc::\n";
}
