#include "acl/stream.h"

namespace aloft {
struct Capture {};
struct TaskUpdate {};
aclError divert(Stream* stream, std::unique_ptr<Node> node) { return fail(kRtFeatureUnsupported, "not yet"); }
aclError divert_record(Stream*, const std::shared_ptr<EventState>&) { return fail(kRtFeatureUnsupported, "not yet"); }
aclError divert_wait(Stream*, const std::shared_ptr<EventState>&) { return fail(kRtFeatureUnsupported, "not yet"); }
bool event_captured(const std::shared_ptr<EventState>&) { return false; }
bool capturing(Stream* stream) { return false; }
aclError check_capture_allows(Stream* stream, const char* what) { return kOk; }
aclError check_unsafe_call(const char* what) { return kOk; }
}  // namespace aloft
