// Identity of libaloft_cuda_torch: `aloft doctor` checks that all libraries come from one build.
extern "C" __attribute__((visibility("default"))) const char* aloft_aloft_cuda_torch_version() { return "0.1.0"; }
