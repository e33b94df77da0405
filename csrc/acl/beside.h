// Graphs that run beside the host: one thread replays a graph while the thread that launched it goes on with its own
// program, and a thread that comes to wait for the graph takes part in computing it instead of sleeping.
//
// Inline streams compute in the thread that launches, so the host's own work between two steps (scheduling, outputs)
// leaves every core but one idle. A graph launched beside it uses them: whoever touches its stream next waits for it
// first (join), so to the host's program the stream keeps its order as ever.
#pragma once
#include "acl/stream.h"

namespace aloft {

// Takes `step` (a graph without waits, records and random nodes), unless another graph runs beside the host already
// or nobody would compute it. The caller holds the stream's order, finds nothing queued, and leaves the order then.
bool run_beside(Stream* stream, Step& step);
// Waits until nothing of `stream` runs beside the host, computing meanwhile. Not for the thread that runs it.
void join_beside(Stream* stream);
// The same for every stream; free of cost where nothing does.
void join_beside();
// The next graph this thread launches is to run beside it; true once.
bool take_wish_beside();
// What runs beside the host is not needed any more.
bool given_up_beside();

// Entry points of stream.cpp. begin: from now on others wait for what will run. finish, in the thread that replays:
// runs `step` holding the stream's order, calls over(), and lets everybody know.
void begin_beside(Stream* stream);
void finish_beside(Stream* stream, Step step, const std::function<void()>& over);

}  // namespace aloft

extern "C" {
// How libaloft_kernels shares its threads out. help(done, context): takes part in other threads' loops until
// done(context), false when there has been nothing to do for a while. beside(1): the calling thread's loops leave one
// thread of the number allowed to the host; it may join them by help(). threads(): that number.
struct AloftBesideHooks {
  bool (*help)(bool (*done)(void*), void* context);
  void (*beside)(int on);
  int (*threads)();
};
// Called once, when libopapi is loaded; the hooks live as long as the process.
ALOFT_API void aloftSetBesideHooks(const AloftBesideHooks* hooks);

// 1 when graphs can run beside the host: inline streams and at least two threads to compute with.
ALOFT_API int aloftRunsBeside(void);
// 1 when moreover no graph runs beside the host now: the next one would.
ALOFT_API int aloftBesideIsFree(void);
// The next graph the calling thread launches on an idle stream runs beside it if it can (aclmdlRIExecuteAsync returns
// at once); else it runs as ever.
ALOFT_API void aloftRunNextBeside(void);
// What runs beside the host on `stream` is not needed: it ends after the operator it is in, what it has written is
// undefined. Returns at once. No effect where nothing does, or the stream is gone.
ALOFT_API void aloftGiveUpBeside(aclrtStream stream);
}
