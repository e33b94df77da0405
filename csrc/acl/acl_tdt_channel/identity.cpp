// Identity of libacl_tdt_channel: `aloft doctor` checks that all libraries come from one build.
extern "C" __attribute__((visibility("default"))) const char* aloft_acl_tdt_channel_version() { return "0.1.0"; }
