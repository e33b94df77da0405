// What the environment asks of the virtual device, read once: which product it poses as, how many there
// are, how streams run. A value we do not know is an error that names the valid ones, raised by the first
// call that needs a device.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace aloft {

struct Profile {
  const char* key;       // what ALOFT_SOC takes: "910B3"
  const char* soc_name;  // what aclrtGetSocName returns: "Ascend910B3"
  uint64_t hbm_bytes;
  int cube_cores;
  int vector_cores;
  int aicpu_cores;
  uint64_t l2_bytes;
  int max_streams;  // per device
};

enum class StreamMode { Inline, Async, Fuzz };

struct Settings {
  const Profile* profile;
  StreamMode streams;
  uint64_t fuzz_seed;
  double hbm_gib;            // 0: not given
  double wait_timeout_s;     // how long a blocked stream may make no progress before a waiting host gives up
  std::vector<int> visible;  // physical device of each logical one
  std::string error;         // not empty: what is wrong with the environment
};

const Settings& settings();
inline bool inline_mode() { return settings().streams == StreamMode::Inline; }

}  // namespace aloft
