// Events. Each record has a number; a wait is for the record that was the latest when the wait was issued.
#pragma once
#include <memory>
#include <mutex>
#include <string>

#include "acl/stream.h"

namespace aloft {

enum : uint32_t {
  kEventSync = 0x1,
  kEventTimeLine = 0x8,
  kEventExternal = 0x20,
  kEventIpc = 0x40,
};

struct Capture;

struct EventState {
  std::mutex mutex;
  uint64_t issued = 0;     // records given to a stream
  uint64_t completed = 0;  // number of the last record that has run
  bool raised = false;     // external events: recorded and not reset since
  uint64_t time_ns = 0;    // steady clock, of the last record that has run
  aclError error = kOk;    // failure of the recording stream
  std::string text;
  bool external = false;
  int device = 0;
  std::weak_ptr<Capture> capture;  // the capture that recorded it last
};

struct Event {
  uint32_t flags;
  std::shared_ptr<EventState> state;
};

// For an external event (usable across a capture's border, wait before record allowed) `number` means nothing.
std::unique_ptr<Node> make_record(const std::shared_ptr<EventState>& state, uint64_t number);
std::unique_ptr<Node> make_wait(const std::shared_ptr<EventState>& state, uint64_t number);

}  // namespace aloft
