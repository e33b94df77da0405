// Graphs that run beside the host: one thread replays a graph while the thread that launched it goes on with its own
// program, and a thread that comes to wait for the graph takes part in computing it instead of sleeping.
//
// Inline streams compute in the thread that launches, so the host's own work between two steps (scheduling, outputs)
// leaves every core but one idle. A graph launched beside it uses them: whoever touches its stream next waits for it
// first (join), so to the host's program the stream keeps its order as ever.
#pragma once
#include "acl/stream.h"

namespace aloft {

// Takes `step` if it is a plain graph, unless another graph runs beside the host already, this one runs on another
// stream, or nobody would compute it. The caller holds the stream's order, finds nothing queued, and leaves the order
// then.
bool run_beside(Stream* stream, Step& step);
// Waits until nothing of `stream` runs beside the host, computing meanwhile; not in the thread that runs it. False:
// not over after timeout_ms (< 0: none) or somewhat more, since a share of a kernel that has been taken is computed.
bool join_beside(Stream* stream, int timeout_ms = -1);
// Whether anything runs beside the host.
bool any_beside();
// As join_beside for the streams of a device.
void join_beside(int device);
// Until nothing runs beside the host.
void join_all_beside();
// The next graph this thread launches is to run beside it; true once.
bool take_wish_beside();
// The stream is to be thrown away.
void give_up_beside(const Stream* stream);
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
  int (*threads)();  // -1: the environment is wrong
};
// Called once, when libopapi is loaded; the hooks live as long as the process.
ALOFT_API void aloftSetBesideHooks(const AloftBesideHooks* hooks);

// 1 when graphs can run beside the host: inline streams and at least two threads to compute with.
ALOFT_API int aloftRunsBeside(void);
// 1 when moreover no graph runs beside the host now: the next one would.
ALOFT_API int aloftBesideIsFree(void);
// The next graph the calling thread launches runs beside it if it can (aclmdlRIExecuteAsync returns at once); else it
// runs as ever, as do graphs that wait, record, draw random numbers, call the program or hold task groups. What fails
// in it is told by the next launch on its stream or the next synchronisation, and by events recorded after it.
ALOFT_API void aloftRunNextBeside(void);
// The number of the graph that has been launched beside the calling thread since it last called aloftRunNextBeside();
// 0: that ran as ever.
ALOFT_API uint64_t aloftBesideNumber(void);
// The graph of that number is not needed: if it still runs, it ends after the operator it is in, what it has written is
// undefined. Returns at once.
ALOFT_API void aloftGiveUpBeside(uint64_t number);
}
