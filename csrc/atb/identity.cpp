// Identity of libatb: `aloft doctor` checks that all libraries come from one build.
extern "C" __attribute__((visibility("default"))) const char* aloft_atb_version() { return "0.1.0"; }
