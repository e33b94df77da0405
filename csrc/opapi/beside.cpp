// Tells the runtime how the kernels' threads are shared out while a graph runs beside the host (acl/beside.h).
#include "acl/beside.h"

#include "kernels/parallel.h"

namespace {

[[gnu::constructor]] void set_hooks() {
  static constexpr AloftBesideHooks hooks{aloft::help_loops, [](int on) { aloft::leave_place(on != 0); },
                                          aloftNumThreads};
  aloftSetBesideHooks(&hooks);
}

}  // namespace
