// Graphs that run beside the host (inline streams), and threads that join in computing them. In the other modes the
// same programs replay their graphs as ever.
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "acl/beside.h"
#include "kernels/parallel.h"
#include "stress.h"

namespace {

// A node that waits for the host.
struct Gate {
  std::atomic<bool> here{false}, open{false};
  void pass() {
    here = true;
    while (!open) std::this_thread::yield();
  }
  void wait() const {
    while (!here) std::this_thread::yield();
  }
  void close() { here = open = false; }
};

aclrtStream new_stream() {
  aclrtStream stream;
  OK(aclrtCreateStream(&stream));
  return stream;
}

void* capture(aclrtStream stream, const std::function<void()>& launches) {
  void* model = nullptr;
  OK(aclmdlRICaptureBegin(stream, 2));
  launches();
  OK(aclmdlRICaptureEnd(stream, &model));
  return model;
}

aclError beside(void* model, aclrtStream stream) {
  aloftRunNextBeside();
  return aclmdlRIExecuteAsync(model, stream);
}

template <class F>
void launch(aclrtStream stream, F f) {
  OK(aloft::launch(stream, "node", [f] {
    f();
    return aclError{0};
  }));
}

int status_of(aclrtStream stream) {
  int status = -1;
  OK(aclrtStreamQuery(stream, &status));
  return status;
}

void wait_until_free() {
  while (inline_streams() && !aloftBesideIsFree()) std::this_thread::yield();
}

// Numbers that kernels raise, all of them by one each: written without atomics, so every overlap is a race.
struct Numbers {
  std::vector<int> values = std::vector<int>(300);
  void raise() {
    aloft::parallel_for(static_cast<int64_t>(values.size()), 16, [this](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++values[i];
    });
  }
  bool all(int expected) const {
    for (const int value : values) {
      if (value != expected) return false;
    }
    return true;
  }
};

// While the graph runs the host goes on; what it does on the stream or with its memory comes after.
void running(int scale) {
  CHECK(aloftRunsBeside() == inline_streams());
  const aclrtStream a = new_stream(), b = new_stream();
  aclrtEvent event;
  OK(aclrtCreateEventExWithFlag(&event, 1));
  Gate gate;
  Numbers numbers;
  int other = 0;
  void* memory = nullptr;
  OK(aclrtMalloc(&memory, 4096, 0));
  void* graph = capture(a, [&] {
    launch(a, [&] { gate.pass(); });
    for (int i = 0; i < 10; ++i) launch(a, [&] { numbers.raise(); });
    OK(aclrtMemsetAsync(memory, 4096, 7, 4096, a));
  });
  void* quick = capture(b, [&] { launch(b, [&] { ++other; }); });
  for (int round = 0; round < 24 * scale; ++round) {
    wait_until_free();
    OK(aclrtMemset(memory, 4096, 0, 4096));
    gate.close();
    OK(beside(graph, a));
    CHECK(status_of(a) == 1 && aloftBesideIsFree() == 0);
    if (round % 8 == 0) FAILS(aclrtSynchronizeStreamWithTimeout(a, 2), 507046, "after 2 ms");
    if (round % 8 == 1) FAILS(aclrtSynchronizeStreamWithTimeout(a, 0), 507046, "after 0 ms");
    OK(beside(quick, b));  // there is one place only: it runs as ever
    OK(aclrtSynchronizeStream(b));
    CHECK(other == round + 1 && status_of(b) == 0);
    gate.wait();
    if (round % 2) {
      gate.open = true;
    } else {
      std::thread([&] { gate.open = true; }).detach();
    }
    unsigned char byte = 0;
    void* fresh = nullptr;
    switch (round % 12) {
      case 0:
        OK(aclrtSynchronizeStream(a));
        break;
      case 1:
        OK(aclrtSynchronizeDevice());
        break;
      case 2:
        OK(aclrtMemcpyAsync(&byte, 1, memory, 1, kToHost, a));
        OK(aclrtSynchronizeStream(a));
        CHECK(byte == 7);
        break;
      case 3:
        launch(a, [&numbers, round] { CHECK(numbers.all((round + 1) * 10)); });
        OK(aclrtSynchronizeStream(a));
        break;
      case 4:
        OK(aclrtRecordEvent(event, a));
        OK(aclrtSynchronizeEvent(event));
        break;
      case 5:
        OK(aclrtRecordEvent(event, a));
        OK(aclrtStreamWaitEvent(b, event));
        launch(b, [&numbers, round] { CHECK(numbers.all((round + 1) * 10)); });
        OK(aclrtSynchronizeStream(b));
        break;
      case 6:
        while (status_of(a) != 0) std::this_thread::yield();
        break;
      case 7:  // whoever frees memory of the device waits
        OK(aclrtMalloc(&fresh, 100, 0));
        OK(aclrtFree(fresh));
        if (inline_streams()) CHECK(status_of(a) == 0);
        break;
      case 8:
        OK(aclmdlRIExecuteAsync(quick, a));
        OK(aclrtSynchronizeStream(a));
        CHECK(other-- == round + 2);
        break;
      case 9:
        if (!inline_streams()) OK(aclrtSynchronizeStream(a));  // in fuzz mode nothing else orders the copy
        OK(aclrtMemcpy(&byte, 1, memory, 1, kToHost));
        CHECK(byte == 7);
        break;
      case 10:
        CHECK(aloftStreamDefers(a) == 0);
        break;
      default:
        OK(aclrtResetDevice(0));
        OK(aclrtSetDevice(0));
    }
    OK(aclrtSynchronizeStream(a));
    CHECK(numbers.all((round + 1) * 10));
  }
  OK(aclmdlRIDestroy(graph));
  OK(aclmdlRIDestroy(quick));
  OK(aclrtFree(memory));
  OK(aclrtDestroyEvent(event));
  OK(aclrtDestroyStream(a));
  OK(aclrtDestroyStream(b));
}

// What fails is told once by the stream, and by events recorded after it; what follows in the graph does not run.
void failing(int scale) {
  const aclrtStream a = new_stream();
  aclrtEvent event;
  OK(aclrtCreateEventExWithFlag(&event, 1));
  int before = 0, after = 0;
  void* graph = capture(a, [&] {
    launch(a, [&] { ++before; });
    OK(aloft::launch(a, "broken", [] {
      aloftSetError("the kernel broke");
      return aclError{507015};
    }));
    launch(a, [&] { ++after; });
  });
  void* good = capture(a, [&] { launch(a, [&] { ++before; }); });
  for (int round = 0; round < 10 * scale; ++round) {
    wait_until_free();
    OK(beside(graph, a));
    if (round % 2) {
      OK(aclrtRecordEvent(event, a));
      FAILS(aclrtSynchronizeEvent(event), 507015, "broke");
    }
    if (round % 3 || !inline_streams()) {
      FAILS(aclrtSynchronizeStream(a), 507015, "broke");
    } else if (round % 2) {
      FAILS(aloft::launch(a, "refused", [] { return aclError{0}; }), 507015, "broke");
    } else {
      FAILS(beside(good, a), 507015, "broke");
    }
    CHECK(before == 2 * round + 1 && after == 0);
    OK(beside(good, a));
    OK(aclrtSynchronizeStream(a));
    CHECK(before == 2 * round + 2);
  }
  OK(aclmdlRIDestroy(graph));
  OK(aclmdlRIDestroy(good));
  OK(aclrtDestroyEvent(event));
  OK(aclrtDestroyStream(a));
}

// A graph that is given up ends after its node, and can be replayed; the stream stays usable, or goes away.
void given_up(int scale) {
  for (int round = 0; round < 6 * scale; ++round) {
    const aclrtStream a = new_stream();
    Gate gate;
    Numbers numbers;
    void* graph = capture(a, [&] {
      launch(a, [&] { gate.pass(); });
      for (int i = 0; i < 5; ++i) launch(a, [&] { numbers.raise(); });
    });
    aloftGiveUpBeside(aloftBesideNumber());  // nothing runs: no effect
    wait_until_free();
    OK(beside(graph, a));
    gate.wait();
    const uint64_t number = aloftBesideNumber();
    CHECK((number != 0) == inline_streams());
    aloftGiveUpBeside(number + 1);
    aloftGiveUpBeside(number - 1);  // no effect
    aloftGiveUpBeside(number);
    gate.open = true;
    OK(aclrtSynchronizeStream(a));
    CHECK(numbers.all(inline_streams() ? 0 : 5));
    OK(aclmdlRIExecuteAsync(graph, a));
    OK(beside(graph, a));
    OK(aclrtSynchronizeStream(a));
    CHECK(numbers.all(inline_streams() ? 10 : 15));
    gate.close();
    wait_until_free();
    OK(beside(graph, a));
    OK(aclmdlRIDestroy(graph));  // the replay keeps what it needs
    gate.wait();
    if (round % 2 && inline_streams()) {
      std::thread opens([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        gate.open = true;
      });
      OK(aclrtDestroyStreamForce(a));
      CHECK(numbers.all(10));
      opens.join();
    } else {
      gate.open = true;
      OK(aclrtDestroyStream(a));
    }
    aloftGiveUpBeside(aloftBesideNumber());  // gone: no effect
  }
}

// Pinned memory goes away after what runs beside the host, which may use it.
void pinned_memory(int scale) {
  if (!inline_streams()) return;
  const aclrtStream a = new_stream();
  for (int round = 0; round < 4 * scale; ++round) {
    Gate gate;
    void* memory = nullptr;
    std::vector<char> pageable(4096);
    if (round % 2) {
      OK(aclrtHostRegister(memory = pageable.data(), pageable.size(), 0, &memory));
    } else {
      OK(aclrtMallocHost(&memory, pageable.size()));
    }
    std::atomic<bool> written{false};
    void* graph = capture(a, [&] {
      launch(a, [&] { gate.pass(); });
      launch(a, [&] {
        std::memset(memory, 1, pageable.size());
        written = true;
      });
    });
    wait_until_free();
    OK(beside(graph, a));
    gate.wait();
    std::thread opens([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      gate.open = true;
    });
    OK(round % 2 ? aclrtHostUnregister(memory) : aclrtFreeHost(memory));
    CHECK(written);
    opens.join();
    OK(aclrtSynchronizeStream(a));
    OK(aclmdlRIDestroy(graph));
  }
  OK(aclrtDestroyStream(a));
}

// One graph on two streams: its replays take turns, wherever they run, and none is lost or taken for a deadlock.
void shared_graph(int scale) {
  const aclrtStream a = new_stream(), b = new_stream();
  Gate gate;
  int count = 0;
  void* graph = capture(a, [&] {
    launch(a, [&] { gate.pass(); });
    launch(a, [&] { ++count; });
  });
  int expected = 0;
  for (int round = 0; round < 200 * scale; ++round) {
    wait_until_free();
    if (round % 10 == 0) {  // the other stream has it
      gate.close();
      std::thread other([&] {
        OK(aclrtSetDevice(0));
        OK(aclmdlRIExecuteAsync(graph, b));
      });
      gate.wait();
      OK(beside(graph, a));
      gate.open = true;
      other.join();
      expected += 2;
    } else {
      OK(beside(graph, a));
      OK(aclmdlRIExecuteAsync(graph, b));
      OK(beside(graph, b));
      expected += 3;
    }
    if (round % 2) {
      OK(aclrtSynchronizeStream(b));
      OK(aclrtSynchronizeStream(a));
    } else {
      OK(aclrtSynchronizeDevice());
    }
    CHECK(count == expected);
  }
  OK(aclmdlRIDestroy(graph));
  OK(aclrtDestroyStream(a));
  OK(aclrtDestroyStream(b));
}

// Graphs that order streams, draw numbers or call the program run as ever; nodes may launch on their own stream, wait
// for it and free memory.
void special_nodes(int scale) {
  const aclrtStream a = new_stream();
  const std::thread::id host = std::this_thread::get_id();
  std::thread::id ran;
  aclrtEvent external;
  OK(aclrtCreateEventExWithFlag(&external, 0x20));
  auto note = [&] { launch(a, [&] { ran = std::this_thread::get_id(); }); };
  void* records = capture(a, [&] {
    note();
    OK(aclrtRecordEvent(external, a));
  });
  void* calls = capture(a, [&] {
    note();
    OK(aclrtLaunchHostFunc(a, [](void* of) { ++*static_cast<int*>(of); }, &scale));
  });
  void* group = nullptr;
  void* grouped = capture(a, [&] {
    OK(aclmdlRICaptureTaskGrpBegin(a));
    note();
    OK(aclmdlRICaptureTaskGrpEnd(a, &group));
  });
  for (void* model : {records, calls, grouped}) {
    wait_until_free();
    OK(beside(model, a));
    OK(aclrtSynchronizeStream(a));
    CHECK((ran == host) == inline_streams());
    OK(aclmdlRIDestroy(model));
  }
  int inner = 0;
  void* memory = nullptr;
  void* graph = capture(a, [&] {
    note();
    launch(a, [&] {
      if (!inline_streams()) return;
      OK(aclrtMalloc(&memory, 100, 0));
      launch(a, [&] { ++inner; });
      OK(aclrtSynchronizeStream(a));
      OK(aclrtMemset(memory, 100, 1, 100));
      OK(aclrtFree(memory));
    });
  });
  for (int round = 1; round <= 5; ++round) {
    wait_until_free();
    OK(beside(graph, a));
    OK(aclrtSynchronizeStream(a));
    CHECK(ran != host);
    if (inline_streams()) CHECK(inner == round);
  }
  // A graph that could not be launched uses the wish up.
  aloftRunNextBeside();
  FAILS(aclmdlRIExecuteAsync(&scale, a), 107017, "not a captured graph");
  OK(aclmdlRIExecuteAsync(graph, a));
  OK(aclrtSynchronizeStream(a));
  CHECK((ran == host) == inline_streams());
  OK(aclmdlRIDestroy(graph));
  OK(aclrtDestroyEvent(external));
  OK(aclrtDestroyStream(a));
}

// A capture meanwhile, on the same stream or on another, takes nothing of what runs and holds nothing of it.
void capture_meanwhile(int scale) {
  const aclrtStream a = new_stream(), b = new_stream();
  for (int round = 0; round < 10 * scale; ++round) {
    Gate gate;
    int nested = 0, count = 0;
    void* graph = capture(a, [&] {
      launch(a, [&] {
        gate.pass();
        if (inline_streams()) launch(a, [&] { ++nested; });
      });
    });
    wait_until_free();
    OK(beside(graph, a));
    gate.wait();
    const aclrtStream s = round % 2 ? a : b;
    std::thread opens([&] {
      if (s == a) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      gate.open = true;
    });
    void* captured = capture(s, [&] {
      if (s == a) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      launch(s, [&] { ++count; });
    });
    opens.join();
    OK(aclrtSynchronizeDevice());
    CHECK(count == 0 && nested == inline_streams());
    OK(aclmdlRIExecuteAsync(captured, s));
    OK(aclrtSynchronizeStream(s));
    CHECK(count == 1 && nested == inline_streams());
    OK(aclmdlRIDestroy(captured));
    OK(aclmdlRIDestroy(graph));
  }
  OK(aclrtDestroyStream(a));
  OK(aclrtDestroyStream(b));
}

// Threads share streams, graphs, the pool and the place beside the host; now and then memory is exported (everything
// stops) and the number of threads changes.
void beside_threads(int scale) {
  constexpr int kStreams = 3, kThreads = 4, kNodes = 6;
  const int before = aloft::num_threads();
  struct Place {
    aclrtStream stream = nullptr;
    Numbers numbers;
    void* graph = nullptr;
    std::atomic<int> expected{0};
  };
  std::vector<Place> places(kStreams);
  for (Place& place : places) {
    place.stream = new_stream();
    place.graph = capture(place.stream, [&] {
      for (int i = 0; i < kNodes; ++i) launch(place.stream, [&place] { place.numbers.raise(); });
    });
  }
  std::atomic<int> ran_beside{0};
  in_threads(kThreads, [&](int t) {
    std::minstd_rand random(t + 1);
    const aclrtStream own = new_stream();
    aclrtEvent event;
    OK(aclrtCreateEventExWithFlag(&event, 1));
    Numbers mine;
    int raised = 0;
    void* memory = nullptr;
    OK(aclrtMalloc(&memory, 8192, 0));
    for (int i = 0; i < 150 * scale; ++i) {
      Place& place = places[random() % kStreams];
      switch (random() % 12) {
        case 0:
        case 1:
        case 2:
        case 3:
          ran_beside += aloftBesideIsFree();
          place.expected += kNodes;
          OK(beside(place.graph, place.stream));
          break;
        case 4:
          place.expected += kNodes;
          OK(aclmdlRIExecuteAsync(place.graph, place.stream));
          break;
        case 5:
          ++place.expected;
          launch(place.stream, [&place] { place.numbers.raise(); });
          break;
        case 6:
          OK(aclrtSynchronizeStream(place.stream));
          break;
        case 7:
          status_of(place.stream);
          break;
        case 8:
          OK(aclrtRecordEvent(event, place.stream));
          OK(aclrtStreamWaitEvent(own, event));
          ++raised;
          launch(own, [&mine] { mine.raise(); });
          break;
        case 9:
          OK(aclrtMemset(memory, 8192, 1, 8192));
          if (random() % 4 == 0) {
            void* fresh = nullptr;
            OK(aclrtMalloc(&fresh, 8192, 0));
            OK(aclrtFree(fresh));
          }
          break;
        case 10: {
          const int numbers[] = {1, 2, 3, 8};
          aloft::set_num_threads(numbers[random() % 4]);
          break;
        }
        default:
          if (random() % 8 == 0) {
            char key[65];
            OK(aclrtIpcMemGetExportKey(memory, 100, key, sizeof key, 0));
            OK(aclrtIpcMemClose(key));
          }
      }
    }
    OK(aclrtSynchronizeStream(own));
    CHECK(mine.all(raised));
    OK(aclrtFree(memory));
    OK(aclrtDestroyEvent(event));
    OK(aclrtDestroyStream(own));
  });
  aloft::set_num_threads(before);
  for (Place& place : places) {
    OK(aclrtSynchronizeStream(place.stream));
    CHECK(place.numbers.all(place.expected));
    OK(aclmdlRIDestroy(place.graph));
    OK(aclrtDestroyStream(place.stream));
  }
  CHECK(!inline_streams() || ran_beside > 0);
}

// The pool alone: whoever helps, each index is computed once.
void guests(int scale) {
  const int before = aloft::num_threads();
  std::atomic<bool> over{false};
  std::vector<std::thread> helpers;
  for (int t = 0; t < 2; ++t) {
    helpers.emplace_back([&] {
      auto done = [](void* of) { return static_cast<std::atomic<bool>*>(of)->load(); };
      while (!aloft::help_loops(done, &over)) std::this_thread::yield();
    });
  }
  in_threads(2, [&](int t) {
    std::minstd_rand random(t + 7);
    std::vector<int> seen(3000);
    if (t == 0) aloft::leave_place(true);
    for (int i = 1; i <= 1500 * scale; ++i) {
      const auto count = static_cast<int64_t>(random() % seen.size()), grain = static_cast<int64_t>(1 + random() % 40);
      if (t == 0 && random() % 20 == 0) {
        const int numbers[] = {1, 2, 3, 8};
        aloft::set_num_threads(numbers[random() % 4]);
      }
      const bool nested = random() % 10 == 0;
      aloft::parallel_for(count, grain, [&](int64_t begin, int64_t end) {
        CHECK(begin % grain == 0 && begin < end && (end - begin >= grain || end == count));
        auto work = [&, begin](int64_t from, int64_t to) {
          for (int64_t k = begin + from; k < begin + to; ++k) ++seen[static_cast<size_t>(k)];
        };
        if (nested) {
          bool flag = false;
          CHECK(!aloft::help_loops([](void* of) { return *static_cast<bool*>(of); }, &flag));  // not from within one
          aloft::parallel_for(end - begin, 1, work);
        } else {
          work(0, end - begin);
        }
      });
      for (int64_t k = 0; k < static_cast<int64_t>(seen.size()); ++k) {
        CHECK(seen[static_cast<size_t>(k)] == (k < count));
        seen[static_cast<size_t>(k)] = 0;
      }
    }
    aloft::leave_place(false);
  });
  aloft::set_num_threads(before);
  over = true;
  for (auto& helper : helpers) helper.join();
}

// The process ends while a graph runs beside the host: after it, and before anything the graph needs goes away.
void left_running(int scale) {
  constexpr int kNodes = 100;
  static std::atomic<int> done{0};
  if (!inline_streams()) return;
  wait_until_free();
  std::atexit([] { CHECK(done == kNodes); });
  static std::vector<int> memory(1000);
  const aclrtStream a = new_stream();
  void* graph = capture(a, [&] {
    for (int i = 0; i < kNodes; ++i) {
      launch(a, [] {
        for (int& value : memory) ++value;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ++done;
      });
    }
  });
  std::thread([&] {  // a thread that launches ends after the graph as well
    OK(aclrtSetDevice(0));
    OK(beside(graph, a));
  })
      .join();
  CHECK(done.exchange(0) == kNodes);
  wait_until_free();
  OK(beside(graph, a));
  while (!done) std::this_thread::yield();
  CHECK(done < kNodes);
}

}  // namespace

std::vector<Scenario> beside_scenarios() {
  return {{"running", running},
          {"failing", failing},
          {"given_up", given_up},
          {"pinned_memory", pinned_memory},
          {"shared_graph", shared_graph},
          {"special_nodes", special_nodes},
          {"capture_meanwhile", capture_meanwhile},
          {"beside_threads", beside_threads},
          {"guests", guests},
          {"left_running", left_running}};
}
