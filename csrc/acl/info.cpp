// Initialisation, device properties, versions, and the switches of the runtime that have a meaning on the host.
#include <sys/types.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "acl/accounting.h"
#include "acl/memory.h"
#include "acl/stream.h"

using namespace aloft;

namespace {

std::mutex g_mutex;
int g_initialized = 0;
std::map<int, int64_t> g_parameters{{0, 0}, {1, 0}, {2, 0}};  // aclrtSetSysParamOpt
uint32_t g_wait_timeout = 0;
uint64_t g_execute_timeout = 0;
int g_saturation = 1;

aclError check_device(const char* call, int64_t device) {
  aclError code = kOk;
  if (!usable(&code)) return code;
  if (device >= 0 && device < device_count()) return kOk;
  return fail(kRtInvalidDevice, "%s: device %lld does not exist; there are %d", call, static_cast<long long>(device),
              device_count());
}

}  // namespace

ALOFT_API aclError aclInit(const char* config_path) {
  aclError code = kOk;
  if (!usable(&code)) return code;
  std::lock_guard<std::mutex> lock(g_mutex);
  if (g_initialized) return fail(kRepeatInitialize, "aclInit: called before in this process");
  g_initialized = 1;
  return kOk;
}

ALOFT_API aclError aclFinalize() {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (!g_initialized) return fail(kRepeatFinalize, "aclFinalize: the runtime is not initialised");
  g_initialized = 0;
  return kOk;
}

ALOFT_API const char* aclrtGetSocName() { return settings().profile->soc_name; }

ALOFT_API aclError aclrtGetVersion(int32_t* major, int32_t* minor, int32_t* patch) {
  if (!major || !minor || !patch) return fail(kInvalidParam, "aclrtGetVersion: an output is null");
  *major = 1;
  *minor = 17;
  *patch = 0;
  return kOk;
}

ALOFT_API aclError aclrtGetRunMode(int* mode) {
  if (!mode) return fail(kInvalidParam, "aclrtGetRunMode: mode is null");
  *mode = 1;  // the program runs on the host
  return kOk;
}

// 0: cube cores, 1: vector cores, 2: bytes of L2.
ALOFT_API aclError aclGetDeviceCapability(uint32_t device, int info, int64_t* value) {
  if (!value) return fail(kInvalidParam, "aclGetDeviceCapability: value is null");
  const aclError code = check_device("aclGetDeviceCapability", device);
  if (code != kOk) return code;
  const Profile& p = *settings().profile;
  switch (info) {
    case 0:
      *value = p.cube_cores;
      return kOk;
    case 1:
      *value = p.vector_cores;
      return kOk;
    case 2:
      *value = static_cast<int64_t>(p.l2_bytes);
      return kOk;
    default:
      return fail(kInvalidParam, "aclGetDeviceCapability: %d is not a property we know", info);
  }
}

ALOFT_API aclError aclrtGetDeviceInfo(uint32_t device, int attribute, int64_t* value) {
  if (!value) return fail(kInvalidParam, "aclrtGetDeviceInfo: value is null");
  const aclError code = check_device("aclrtGetDeviceInfo", device);
  if (code != kOk) return code;
  const Profile& p = *settings().profile;
  switch (attribute) {
    case 1:
      *value = p.aicpu_cores;
      return kOk;
    case 101:
    case 102:
      *value = p.cube_cores;
      return kOk;
    case 201:
      *value = p.vector_cores;
      return kOk;
    case 301:
      *value = static_cast<int64_t>(capacity(static_cast<int>(device)));
      return kOk;
    case 302:
      *value = static_cast<int64_t>(p.l2_bytes);
      return kOk;
    case 402:
      *value = settings().visible[device];
      return kOk;
    case 501:
      *value = 1;
      return kOk;  // is virtual
    default:
      return fail(kRtFeatureUnsupported, "aclrtGetDeviceInfo: attribute %d is not known here", attribute);
  }
}

// 0: infinities and NaN kept, 1: bfloat16, 2: compiled ahead of need.
ALOFT_API aclError aclGetCannAttributeList(const int** list, size_t* count) {
  if (!list || !count) return fail(kInvalidParam, "aclGetCannAttributeList: an output is null");
  static const int attributes[] = {0, 1, 2};
  *list = attributes;
  *count = settings().profile->max_streams > 1024 ? 3 : 1;
  return kOk;
}

ALOFT_API aclError aclGetCannAttribute(int attribute, int32_t* value) {
  if (!value) return fail(kInvalidParam, "aclGetCannAttribute: value is null");
  if (attribute < 0 || attribute > 2)
    return fail(kInvalidParam, "aclGetCannAttribute: %d is not an attribute", attribute);
  *value = 1;
  return kOk;
}

// The identity is that of the virtual device: host name hash, index.
ALOFT_API aclError aclrtDeviceGetUuid(int32_t device, void* uuid) {
  if (!uuid) return fail(kInvalidParam, "aclrtDeviceGetUuid: uuid is null");
  const aclError code = check_device("aclrtDeviceGetUuid", device);
  if (code != kOk) return code;
  char host[64] = "";
  gethostname(host, sizeof host - 1);
  uint64_t hash = 1469598103934665603ull;
  for (const char* p = host; *p; ++p) hash = (hash ^ static_cast<unsigned char>(*p)) * 1099511628211ull;
  std::memcpy(uuid, &hash, 8);
  const uint64_t index = 0xa10f700000000000ull + static_cast<uint64_t>(settings().visible[device]);
  std::memcpy(static_cast<char*>(uuid) + 8, &index, 8);
  return kOk;
}

ALOFT_API aclError aclrtDeviceGetBareTgid(int32_t* pid) {
  if (!pid) return fail(kInvalidParam, "aclrtDeviceGetBareTgid: pid is null");
  *pid = static_cast<int32_t>(getpid());
  return kOk;
}

ALOFT_API aclError aclrtGetLogicDevIdByUserDevId(int32_t user_device, int32_t* logic_device) {
  if (!logic_device) return fail(kInvalidParam, "aclrtGetLogicDevIdByUserDevId: the output is null");
  const aclError code = check_device("aclrtGetLogicDevIdByUserDevId", user_device);
  if (code != kOk) return code;
  *logic_device = settings().visible[user_device];
  return kOk;
}

ALOFT_API aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t device, int32_t peer) {
  if (!can) return fail(kInvalidParam, "aclrtDeviceCanAccessPeer: the output is null");
  aclError code = check_device("aclrtDeviceCanAccessPeer", device);
  if (code == kOk) code = check_device("aclrtDeviceCanAccessPeer", peer);
  if (code != kOk) return code;
  *can = device != peer;
  return kOk;
}

ALOFT_API aclError aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t flags) {
  return check_device("aclrtDeviceEnablePeerAccess", peer);
}

ALOFT_API aclError aclsysGetVersionStr(char* package, char* version) {
  if (!package || !version) return fail(kInvalidParam, "aclsysGetVersionStr: an argument is null");
  std::strcpy(version, "8.5.0");
  return kOk;
}

namespace {
struct PackageVersion {
  char version[128];
  char major[64], minor[64], release[64], patch[64];
  char reserved[128];
};
}  // namespace

ALOFT_API aclError aclsysGetCANNVersion(int package, void* version) {
  if (!version) return fail(kInvalidParam, "aclsysGetCANNVersion: version is null");
  if (package < 0 || package > 7) return fail(kInvalidParam, "aclsysGetCANNVersion: %d is not a package", package);
  PackageVersion v{};
  std::strcpy(v.version, "8.5.0");
  std::strcpy(v.major, "8");
  std::strcpy(v.minor, "5");
  std::strcpy(v.release, "0");
  *static_cast<PackageVersion*>(version) = v;
  return kOk;
}

// --- switches -------------------------------------------------------------------------------------------------------

ALOFT_API aclError aclrtSetSysParamOpt(int option, int64_t value) {
  if (option < 0 || option > 2) return fail(kInvalidParam, "aclrtSetSysParamOpt: %d is not an option", option);
  std::lock_guard<std::mutex> lock(g_mutex);
  g_parameters[option] = value;
  return kOk;
}

// Everything computed here is deterministic, whatever the option says.
ALOFT_API aclError aclrtCtxSetSysParamOpt(int option, int64_t value) { return aclrtSetSysParamOpt(option, value); }

ALOFT_API aclError aclrtGetSysParamOpt(int option, int64_t* value) {
  if (!value) return fail(kInvalidParam, "aclrtGetSysParamOpt: value is null");
  std::lock_guard<std::mutex> lock(g_mutex);
  const auto it = g_parameters.find(option);
  if (it == g_parameters.end()) return fail(107021, "aclrtGetSysParamOpt: option %d is not set", option);
  *value = it->second;
  return kOk;
}

ALOFT_API aclError aclrtSetOpWaitTimeout(uint32_t seconds) {
  g_wait_timeout = seconds;
  return kOk;
}

// A kernel here runs to its end: the limit is kept, and not enforced.
ALOFT_API aclError aclrtSetOpExecuteTimeOut(uint32_t seconds) {
  g_execute_timeout = seconds * 1000000ull;
  return kOk;
}

ALOFT_API aclError aclrtSetOpExecuteTimeOutV2(uint64_t microseconds, uint64_t* actual) {
  g_execute_timeout = microseconds;
  if (actual) *actual = microseconds;
  return kOk;
}

// 0: saturation, 1: infinities and NaN. The kernels always keep infinities and NaN, as a 910B in its default mode.
ALOFT_API aclError aclrtSetDeviceSatMode(int mode) {
  if (mode != 1) {
    return fail(kRtFeatureUnsupported, "aclrtSetDeviceSatMode: the virtual NPU keeps infinities and NaN (mode 1) only");
  }
  g_saturation = mode;
  return kOk;
}

// --- limits on cores: kept and returned, without effect on results --------------------------------------------------

static aclError core_limit(const char* call, int type, uint32_t limit_cube, uint32_t limit_vector, uint32_t* value) {
  if (!value) return fail(kInvalidParam, "%s: value is null", call);
  const Profile& p = *settings().profile;
  if (type == 0) {
    *value = limit_cube ? limit_cube : static_cast<uint32_t>(p.cube_cores);
  } else if (type == 1) {
    *value = limit_vector ? limit_vector : static_cast<uint32_t>(p.vector_cores);
  } else {
    return fail(kInvalidParam, "%s: %d is not a kind of core", call, type);
  }
  return kOk;
}

static aclError set_core_limit(const char* call, int type, uint32_t value, uint32_t* cube, uint32_t* vector) {
  const Profile& p = *settings().profile;
  if (type != 0 && type != 1) return fail(kInvalidParam, "%s: %d is not a kind of core", call, type);
  const int most = type == 0 ? p.cube_cores : p.vector_cores;
  if (value < 1 || value > static_cast<uint32_t>(most)) {
    return fail(kInvalidParam, "%s: %u cores asked for, the device has 1 to %d", call, value, most);
  }
  *(type == 0 ? cube : vector) = value;
  return kOk;
}

ALOFT_API aclError aclrtGetDeviceResLimit(int32_t device, int type, uint32_t* value) {
  aclError code = kOk;
  const Context* context = context_of(device, &code);
  return context ? core_limit("aclrtGetDeviceResLimit", type, context->cube_limit, context->vector_limit, value) : code;
}

ALOFT_API aclError aclrtSetDeviceResLimit(int32_t device, int type, uint32_t value) {
  aclError code = kOk;
  Context* context = context_of(device, &code);
  if (!context) return code;
  return set_core_limit("aclrtSetDeviceResLimit", type, value, &context->cube_limit, &context->vector_limit);
}

ALOFT_API aclError aclrtResetDeviceResLimit(int32_t device) {
  aclError code = kOk;
  Context* context = context_of(device, &code);
  if (!context) return code;
  context->cube_limit = context->vector_limit = 0;
  return kOk;
}

ALOFT_API aclError aclrtGetStreamResLimit(aclrtStream handle, int type, uint32_t* value) {
  aclError code = kOk;
  const Stream* stream = find_stream(handle, &code);
  return stream ? core_limit("aclrtGetStreamResLimit", type, stream->cube_limit, stream->vector_limit, value) : code;
}

ALOFT_API aclError aclrtSetStreamResLimit(aclrtStream handle, int type, uint32_t value) {
  aclError code = kOk;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  return set_core_limit("aclrtSetStreamResLimit", type, value, &stream->cube_limit, &stream->vector_limit);
}

ALOFT_API aclError aclrtResetStreamResLimit(aclrtStream handle) {
  aclError code = kOk;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  stream->cube_limit = stream->vector_limit = 0;
  return kOk;
}

static thread_local Stream* t_limits = nullptr;

ALOFT_API aclError aclrtUseStreamResInCurrentThread(aclrtStream handle) {
  aclError code = kOk;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  t_limits = stream;
  return kOk;
}

ALOFT_API aclError aclrtUnuseStreamResInCurrentThread(aclrtStream handle) {
  t_limits = nullptr;
  return kOk;
}

ALOFT_API aclError aclrtGetResInCurrentThread(int type, uint32_t* value) {
  aclError code = kOk;
  if (t_limits) {
    const Stream* stream = find_stream(t_limits, &code);
    if (stream) return core_limit("aclrtGetResInCurrentThread", type, stream->cube_limit, stream->vector_limit, value);
  }
  const Context* context = current_context(&code);
  if (!context) return code;
  return core_limit("aclrtGetResInCurrentThread", type, context->cube_limit, context->vector_limit, value);
}

// --- what the virtual device does not have
// ----------------------------------------------------------------------------

ALOFT_API void aclAppLog(int level, const char* function, const char* file, uint32_t line, const char* format, ...) {
  static const int threshold = [] {
    const char* text = std::getenv("ASCEND_GLOBAL_LOG_LEVEL");
    return text && *text >= '0' && *text <= '4' ? *text - '0' : 4;  // 4: nothing, the default of this runtime
  }();
  if (level < threshold) return;
  static const char* const names[] = {"DEBUG", "INFO", "WARNING", "ERROR"};
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "[%s] %s:%u %s: %s\n", names[level & 3], file ? file : "", line, function ? function : "", text);
}

#define ALOFT_ABSENT(NAME, WHAT) \
  ALOFT_API aclError NAME() { return fail(kFeatureUnsupported, #NAME ": the virtual NPU has no " WHAT); }

ALOFT_ABSENT(aclrtBinaryLoadFromData, "device kernels to load")
ALOFT_ABSENT(aclrtBinaryGetFunction, "device kernels to load")
ALOFT_ABSENT(aclrtGetFunctionAddr, "device kernels to load")
ALOFT_ABSENT(rtDevBinaryRegister, "device kernels to load")
ALOFT_ABSENT(rtFunctionRegister, "device kernels to load")
ALOFT_ABSENT(rtKernelLaunch, "device kernels to load")
ALOFT_ABSENT(rtGetC2cCtrlAddr, "inter-core synchronisation")
ALOFT_ABSENT(aclmdlInitDump, "operator dump")
ALOFT_ABSENT(aclmdlSetDump, "operator dump")
ALOFT_ABSENT(aclmdlFinalizeDump, "operator dump")
ALOFT_ABSENT(aclopStartDumpArgs, "operator dump")
ALOFT_ABSENT(aclopStopDumpArgs, "operator dump")
