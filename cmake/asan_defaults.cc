// What LeakSanitizer is told, in every program of the preset `asan`: also in processes that a
// test's processes start with an environment of their own.
// Format: github.com/google/sanitizers/wiki/AddressSanitizerLeakSanitizer

// Debian's gRPC 1.51 forgets, of a TLS connection that ends, the slice buffer that it read into
// (2,880 bytes, grown by grpc_slice_buffer_add_indexed). Its libraries have no frame pointers, so
// this is as much of the stack as there is; nothing but gRPC calls it.
extern "C" const char* __lsan_default_suppressions() { return "leak:gpr_realloc\n"; }
