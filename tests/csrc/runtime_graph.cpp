// Graph capture and replay, task groups.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "stress.h"

namespace {

aclError add(aclrtStream stream, int* where, int amount) {
  return aloft::launch(stream, "add", [where, amount] {
    *where += amount;
    return aclError{0};
  });
}

// Capture does not execute; replay does, in order, over forked streams too.
void capture(int scale) {
  aclrtStream a, b;
  aclrtEvent fork, join;
  OK(aclrtCreateStream(&a));
  OK(aclrtCreateStream(&b));
  OK(aclrtCreateEventExWithFlag(&fork, 1));
  OK(aclrtCreateEventExWithFlag(&join, 1));
  void *model = nullptr, *seen = nullptr;
  int count = 0, doubled = 0, status = 9;
  OK(aclmdlRICaptureBegin(a, 0));
  CHECK(aloftStreamIsCapturing(a) == 1 && aloftStreamIsCapturing(b) == 0);
  OK(add(a, &count, 1));
  OK(aclrtRecordEvent(fork, a));
  OK(aclrtStreamWaitEvent(b, fork));  // b joins
  CHECK(aloftStreamIsCapturing(b) == 1);
  OK(aloft::launch(b, "double", [&] {
    doubled = count * 2;
    return aclError{0};
  }));
  OK(aclrtRecordEvent(join, b));
  OK(add(a, &count, 0));
  OK(aclrtStreamWaitEvent(a, join));
  FAILS(aclrtSynchronizeStream(a), 107027, "captured");
  FAILS(aclrtSynchronizeDevice(), 107030, "captured");
  FAILS(aclrtSynchronizeEvent(fork), 107028, "capture");
  FAILS(aloftDrainStream(b), 107027, "captured");
  FAILS(aclmdlRICaptureEnd(b, &model), 107036, "began on stream");
  OK(aclmdlRICaptureGetInfo(a, &status, &seen));
  CHECK(status == 1);
  OK(aclmdlRICaptureEnd(a, &model));
  CHECK(model == seen && count == 0 && doubled == 0);
  OK(aclmdlRICaptureGetInfo(a, &status, &seen));
  CHECK(status == 0 && aloftStreamIsCapturing(b) == 0);
  for (int i = 1; i <= 50 * scale; ++i) {
    OK(aclmdlRIExecuteAsync(model, i % 2 ? a : b));
    if (i % 2 == 0) OK(aclrtSynchronizeDevice());
    if (i % 2 == 0) CHECK(count == i && doubled == 2 * i);
    if (i % 2) OK(aclrtSynchronizeStream(a));
  }
  OK(aclmdlRIDestroy(model));
  FAILS(aclmdlRIExecuteAsync(model, a), 107017, "not a captured graph");
  // Errors of capturing.
  OK(aclmdlRICaptureBegin(a, 2));
  FAILS(aclmdlRICaptureBegin(a, 2), 107027, "being captured");
  OK(aclrtRecordEvent(fork, a));
  OK(aclrtStreamWaitEvent(b, fork));
  OK(add(b, &count, 1));
  FAILS(aclmdlRICaptureEnd(a, &model), 107025, "not joined");
  CHECK(aloftStreamIsCapturing(a) == 0 && aloftStreamIsCapturing(b) == 0);
  OK(aclrtRecordEvent(join, b));
  OK(aclmdlRICaptureBegin(a, 2));
  FAILS(aclrtStreamWaitEvent(a, join), 107024, "outside the capture");
  OK(aclmdlRICaptureEnd(a, &model));
  OK(aclmdlRIDestroy(model));
  FAILS(aclmdlRICaptureEnd(a, &model), 107029, "not being captured");
  FAILS(aclmdlRICaptureBegin(nullptr, 0), 107030, "default stream");
  OK(aclrtDestroyEvent(fork));
  OK(aclrtDestroyEvent(join));
  OK(aclrtDestroyStream(a));
  OK(aclrtDestroyStream(b));
}

// The protocol of the update stream: capture waits for a value before the group; each replay is released by one
// update. Both orders are used. The group's new nodes must be the ones the released replay runs.
void task_group(int scale) {
  aclrtStream main_stream, update;
  OK(aclrtCreateStream(&main_stream));
  OK(aclrtCreateStream(&update));
  void *flag = nullptr, *model = nullptr, *group = nullptr;
  OK(aclrtMalloc(&flag, 32, 0));
  int length = 0, total = 0;
  auto attend = [&](aclrtStream s, int value) {
    return aloft::launch(s, "attend", [&length, &total, value] {
      length = value;
      total += value;
      return aclError{0};
    });
  };
  OK(aclmdlRICaptureBegin(main_stream, 0));
  OK(aclrtValueWait(flag, 1, 1, main_stream));
  OK(aclrtValueWrite(flag, 0, 0, main_stream));
  OK(aclmdlRICaptureTaskGrpBegin(main_stream));
  OK(attend(main_stream, 1));
  OK(aclmdlRICaptureTaskGrpEnd(main_stream, &group));
  OK(aclmdlRICaptureEnd(main_stream, &model));
  CHECK(total == 0);
  int expected = 0;
  auto refresh = [&](int value) {
    OK(aclmdlRICaptureTaskUpdateBegin(update, group));
    OK(attend(update, value));
    OK(aclmdlRICaptureTaskUpdateEnd(update));
    OK(aclrtValueWrite(flag, 1, 0, update));
  };
  for (int i = 1; i <= 40 * scale; ++i) {
    if (i % 2) {
      refresh(i);
      OK(aclmdlRIExecuteAsync(model, main_stream));
    } else {
      OK(aclmdlRIExecuteAsync(model, main_stream));
      int status = 0;
      OK(aclrtStreamQuery(main_stream, &status));
      CHECK(status == 1);
      refresh(i);
    }
    OK(aclrtSynchronizeStream(main_stream));
    expected += i;
    CHECK(length == i && total == expected);
  }
  OK(aclmdlRIExecuteAsync(model, main_stream));
  FAILS(aclrtSynchronizeStream(main_stream), 507046, "aclrtValueWait");  // the record is missing
  CHECK(total == expected);
  OK(aclmdlRICaptureTaskUpdateBegin(update, group));
  OK(aloft::launch(update, "other", [] { return aclError{0}; }));
  FAILS(aclmdlRICaptureTaskUpdateEnd(update), 107040, "attend");
  FAILS(aclmdlRICaptureTaskUpdateEnd(update), 107033, "no task update");
  FAILS(aclmdlRICaptureTaskUpdateBegin(update, &length), 107017, "not a task group");
  FAILS(aclmdlRICaptureTaskGrpBegin(update), 107029, "not being captured");
  OK(aclmdlRIDestroy(model));
  FAILS(aclmdlRICaptureTaskUpdateBegin(update, group), 107017, "not a task group");
  OK(aclrtFree(flag));
  OK(aclrtDestroyStream(main_stream));
  OK(aclrtDestroyStream(update));
}

// External events: waits before records, also inside a graph; reset between uses.
void external_event(int scale) {
  aclrtStream a, b;
  aclrtEvent e;
  OK(aclrtCreateStream(&a));
  OK(aclrtCreateStream(&b));
  OK(aclrtCreateEventExWithFlag(&e, 0x20));
  void* model = nullptr;
  int count = 0;
  OK(aclmdlRICaptureBegin(a, 0));
  OK(aclrtStreamWaitEvent(a, e));
  OK(aclrtResetEvent(e, a));
  OK(add(a, &count, 1));
  OK(aclmdlRICaptureEnd(a, &model));
  for (int i = 1; i <= 20 * scale; ++i) {
    if (i % 2) OK(aclrtRecordEvent(e, b));
    OK(aclmdlRIExecuteAsync(model, a));
    if (i % 2 == 0) OK(aclrtRecordEvent(e, b));
    OK(aclrtSynchronizeStream(a));
    CHECK(count == i);
  }
  OK(aclmdlRIExecuteAsync(model, a));
  FAILS(aclrtSynchronizeStream(a), 507046, "aclrtStreamWaitEvent");
  OK(aclmdlRIDestroy(model));
  OK(aclrtDestroyEvent(e));
  OK(aclrtDestroyStream(a));
  OK(aclrtDestroyStream(b));
}

// Captures and replays from several threads at once, each on its own streams, one graph shared.
void graphs_in_threads(int scale) {
  aclrtStream origin;
  OK(aclrtCreateStream(&origin));
  void* shared = nullptr;
  int shared_count = 0;
  OK(aclmdlRICaptureBegin(origin, 2));
  for (int k = 0; k < 10; ++k) OK(add(origin, &shared_count, 1));
  OK(aclmdlRICaptureEnd(origin, &shared));
  const int rounds = 10 * scale;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      OK(aclrtSetDevice(0));
      aclrtStream s;
      OK(aclrtCreateStream(&s));
      for (int i = 0; i < rounds; ++i) {
        int count = 0;
        void* model = nullptr;
        OK(aclmdlRICaptureBegin(s, 1));
        for (int k = 0; k < 20; ++k) OK(add(s, &count, 1));
        OK(aclmdlRICaptureEnd(s, &model));
        OK(aclmdlRIExecuteAsync(model, s));
        OK(aclmdlRIExecuteAsync(shared, s));
        OK(aclmdlRIExecuteAsync(model, s));
        OK(aclmdlRIDestroy(model));  // a replay in progress keeps what it needs
        OK(aclrtSynchronizeStream(s));
        CHECK(count == 40);
      }
      OK(aclrtDestroyStream(s));
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(shared_count == 3 * rounds * 10);
  OK(aclmdlRIDestroy(shared));
  OK(aclrtDestroyStream(origin));
}

void replay_cost(int scale) {
  aclrtStream s;
  OK(aclrtCreateStream(&s));
  void* model = nullptr;
  int count = 0;
  OK(aclmdlRICaptureBegin(s, 2));
  for (int k = 0; k < 1000; ++k) OK(add(s, &count, 1));
  OK(aclmdlRICaptureEnd(s, &model));
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) OK(aclmdlRIExecuteAsync(model, s));
  OK(aclrtSynchronizeStream(s));
  std::printf("replay: %.0f ns a node\n",
              std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / 20000);
  CHECK(count == 20000);
  OK(aclmdlRIDestroy(model));
  OK(aclrtDestroyStream(s));
}

}  // namespace

std::vector<Scenario> graph_scenarios() {
  return {{"capture", capture},
          {"task_group", task_group},
          {"external_event", external_event},
          {"graphs_in_threads", graphs_in_threads},
          {"replay_cost", replay_cost}};
}
