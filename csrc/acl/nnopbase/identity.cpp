// Identity of libnnopbase: `aloft doctor` checks that all libraries come from one build. CANN keeps the
// operand functions of the aclnn interface here; ours are in libopapi, which this library depends on:
// a lookup by name in it finds them.
extern "C" __attribute__((visibility("default"))) const char* aloft_nnopbase_version() { return "0.1.0"; }
