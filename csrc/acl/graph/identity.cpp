// Identity of libgraph: `aloft doctor` checks that all libraries come from one build.
extern "C" __attribute__((visibility("default"))) const char* aloft_graph_version() { return "0.1.0"; }
