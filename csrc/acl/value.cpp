// Values in device memory that streams write and wait for (torch_npu's ExternalEvent is made of these).
#include "acl/memory.h"
#include "acl/stream.h"

namespace aloft {
namespace {

enum Comparison : uint32_t { kGreaterEqual = 0, kEqual = 1, kAnd = 2, kNor = 3 };

uint64_t load(const void* address) { return __atomic_load_n(static_cast<const uint64_t*>(address), __ATOMIC_ACQUIRE); }

class ValueWaitNode final : public SyncNode {
 public:
  ValueWaitNode(const void* address, uint64_t value, uint32_t flag)
      : SyncNode("aclrtValueWait"), address_(address), value_(value), flag_(flag) {}
  bool ready() override {
    const uint64_t now = load(address_);
    switch (flag_) {
      case kGreaterEqual:
        return static_cast<int64_t>(now - value_) >= 0;
      case kEqual:
        return now == value_;
      case kAnd:
        return (now & value_) != 0;
      default:
        return ~(now | value_) != 0;
    }
  }
  aclError run() override { return kOk; }

 private:
  const void* const address_;
  const uint64_t value_;
  const uint32_t flag_;
};

class ValueWriteNode final : public SyncNode {
 public:
  ValueWriteNode(void* address, uint64_t value) : SyncNode("aclrtValueWrite"), address_(address), value_(value) {}
  aclError run() override {
    __atomic_store_n(static_cast<uint64_t*>(address_), value_, __ATOMIC_RELEASE);
    signal_progress();
    return kOk;
  }
  void skip(aclError error, const std::string& text) override { run(); }

 private:
  void* const address_;
  const uint64_t value_;
};

aclError check_value(const char* call, const void* address) {
  if (!address || reinterpret_cast<uint64_t>(address) % 8) {
    return fail(kRtInvalidParam, "%s: the address %p is null or not a multiple of 8", call, address);
  }
  return check_device_operand(address, 8, call, "value");
}

aclError issue(aclrtStream handle, std::unique_ptr<Node> node, const void* address) {
  aclError code = kOk;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  if (stream->diverted.load(std::memory_order_relaxed)) {
    const Touch value = Touch::bytes(Use::Keeps, address, 8);
    return divert(stream, std::move(node), &value, 1);
  }
  return submit(stream, Step{std::move(node), nullptr, 0});
}

}  // namespace
}  // namespace aloft

using namespace aloft;

ALOFT_API aclError aclrtValueWrite(void* address, uint64_t value, uint32_t flag, aclrtStream stream) {
  const aclError code = check_value("aclrtValueWrite", address);
  if (code != kOk) return code;
  if (flag != 0) return fail(kRtInvalidParam, "aclrtValueWrite: flag %u is reserved and must be 0", flag);
  return issue(stream, std::make_unique<ValueWriteNode>(address, value), address);
}

ALOFT_API aclError aclrtValueWait(void* address, uint64_t value, uint32_t flag, aclrtStream stream) {
  const aclError code = check_value("aclrtValueWait", address);
  if (code != kOk) return code;
  if (flag > kNor) return fail(kRtInvalidParam, "aclrtValueWait: flag %u is not a comparison (0 to 3)", flag);
  return issue(stream, std::make_unique<ValueWaitNode>(address, value, flag), address);
}
