#include "acl/profile.h"

#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace aloft {
namespace {

// Generated from src/aloft/runtime/profiles.json (values and where they come from) by CMake.
const Profile kProfiles[] = {
#include "aloft_profiles.inc"
};

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? value : nullptr;
}

bool parse_number(const char* text, double lowest, double highest, double* value) {
  char* end = nullptr;
  errno = 0;
  *value = std::strtod(text, &end);
  return end != text && *end == 0 && errno == 0 && std::isfinite(*value) && *value >= lowest && *value <= highest;
}

const Profile* find_profile(const std::string& wanted) {
  for (const Profile& p : kProfiles) {
    if (wanted == upper(p.key) || wanted == upper(p.soc_name)) return &p;
  }
  return nullptr;
}

// CANN's rule: a comma-separated list of device numbers; reading stops at the first entry that is not a
// device or was named before.
std::vector<int> visible_devices(int count) {
  std::vector<int> all;
  const char* text = std::getenv("ASCEND_RT_VISIBLE_DEVICES");
  if (!text) {
    for (int i = 0; i < count; ++i) all.push_back(i);
    return all;
  }
  for (const char* p = text; *p;) {
    char* end = nullptr;
    const long id = std::strtol(p, &end, 10);
    while (end && *end == ' ') ++end;
    if (end == p || (*end && *end != ',') || id < 0 || id >= count) break;
    bool seen = false;
    for (int other : all) seen = seen || other == id;
    if (seen) break;
    all.push_back(static_cast<int>(id));
    p = *end ? end + 1 : end;
  }
  return all;
}

Settings read_settings() {
  Settings s{find_profile("910B3"), StreamMode::Inline, 0, 0, 30, {}, ""};
  double number = 0;
  if (const char* soc = environment("ALOFT_SOC")) {
    const Profile* found = find_profile(upper(soc));
    if (found) {
      s.profile = found;
    } else {
      s.error = std::string("ALOFT_SOC=") + soc + " is not a known device; valid:";
      for (const Profile& p : kProfiles) s.error += std::string(" ") + p.key;
    }
  }
  int count = 8;
  if (const char* text = environment("ALOFT_DEVICES")) {
    if (parse_number(text, 1, 64, &number) && number == std::floor(number)) {
      count = static_cast<int>(number);
    } else {
      s.error = std::string("ALOFT_DEVICES=") + text + " is not a number of devices; valid: 1 to 64";
    }
  }
  s.visible = visible_devices(count);
  if (const char* text = environment("ALOFT_STREAMS")) {
    const std::string mode = text;
    if (mode == "inline") {
      s.streams = StreamMode::Inline;
    } else if (mode == "async") {
      s.streams = StreamMode::Async;
    } else if (mode == "fuzz") {
      s.streams = StreamMode::Fuzz;
    } else {
      s.error = "ALOFT_STREAMS=" + mode + " is not a way to run streams; valid: inline async fuzz";
    }
  }
  if (const char* text = environment("ALOFT_HBM_GIB")) {
    if (parse_number(text, 0.015625, 65536, &number)) {
      s.hbm_gib = number;
    } else {
      s.error = std::string("ALOFT_HBM_GIB=") + text + " is not a device memory size; valid: 0.015625 to 65536 (GiB)";
    }
  }
  if (const char* text = environment("ALOFT_FUZZ_SEED")) {
    if (parse_number(text, 0, 9.0e15, &number) && number == std::floor(number)) {
      s.fuzz_seed = static_cast<uint64_t>(number);
    } else {
      s.error = std::string("ALOFT_FUZZ_SEED=") + text + " is not a seed; valid: an integer from 0";
    }
  }
  if (const char* text = environment("ALOFT_WAIT_TIMEOUT")) {
    if (parse_number(text, 0, 1e6, &number)) {
      s.wait_timeout_s = number;
    } else {
      s.error = std::string("ALOFT_WAIT_TIMEOUT=") + text + " is not a time; valid: seconds from 0";
    }
  }
  return s;
}

}  // namespace

const Settings& settings() {
  static const Settings* const s = new Settings(read_settings());
  return *s;
}

}  // namespace aloft
