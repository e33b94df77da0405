// Streams, events, copies, memory: many threads, deterministic checks.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "stress.h"

namespace {

// Several threads launch on the same streams: each stream runs its nodes one at a time, and each thread's in order.
void fifo(int scale) {
  constexpr int kStreams = 3, kThreads = 4;
  const int per_thread = 200 * scale;
  std::vector<aclrtStream> streams(kStreams);
  std::vector<std::vector<std::pair<int, int>>> seen(kStreams);  // written by nodes only, without a lock
  for (auto& s : streams) OK(aclrtCreateStream(&s));
  in_threads(kThreads, [&](int t) {
    std::minstd_rand random(t + 1);
    for (int i = 0; i < per_thread; ++i) {
      const int s = static_cast<int>(random() % kStreams);
      auto* list = &seen[s];
      OK(aloft::launch(streams[s], "note", [list, t, i] {
        list->emplace_back(t, i);
        return aclError{0};
      }));
      if (random() % 97 == 0) OK(aclrtSynchronizeStream(streams[s]));
    }
  });
  for (auto s : streams) OK(aclrtSynchronizeStream(s));
  size_t total = 0;
  for (const auto& list : seen) {
    int last[kThreads] = {-1, -1, -1, -1};
    for (auto [t, i] : list) {
      CHECK(i > last[t]);
      last[t] = i;
    }
    total += list.size();
  }
  CHECK(total == static_cast<size_t>(kThreads * per_thread));
  for (auto s : streams) OK(aclrtDestroyStream(s));
}

// fill -> copy -> copy to the host over three streams, ordered by events only; a slot is reused behind an event.
void pipeline(int scale) {
  constexpr int kSlots = 3;
  constexpr size_t kBytes = 1 << 16;
  const int rounds = 60 * scale;
  aclrtStream a, b, c;
  OK(aclrtCreateStream(&a));
  OK(aclrtCreateStream(&b));
  OK(aclrtCreateStream(&c));
  void *from[kSlots], *to[kSlots], *host = nullptr;
  aclrtEvent filled[kSlots], copied[kSlots], read[kSlots];
  for (int i = 0; i < kSlots; ++i) {
    OK(aclrtMalloc(&from[i], kBytes, 0));
    OK(aclrtMalloc(&to[i], kBytes, 0));
    OK(aclrtCreateEventExWithFlag(&filled[i], 1));
    OK(aclrtCreateEventExWithFlag(&copied[i], 1));
    OK(aclrtCreateEventExWithFlag(&read[i], 8));
  }
  OK(aclrtMallocHost(&host, rounds * kBytes));
  auto* bytes = static_cast<unsigned char*>(host);
  for (int r = 0; r < rounds; ++r) {
    const int i = r % kSlots;
    OK(aclrtStreamWaitEvent(a, copied[i]));  // never recorded at first: no wait
    OK(aclrtMemsetAsync(from[i], kBytes, r & 0xff, kBytes, a));
    OK(aclrtRecordEvent(filled[i], a));
    OK(aclrtStreamWaitEvent(b, filled[i]));
    OK(aclrtStreamWaitEvent(b, read[i]));
    OK(aclrtMemcpyAsync(to[i], kBytes, from[i], kBytes, kOnDevice, b));
    OK(aclrtRecordEvent(copied[i], b));
    OK(aclrtStreamWaitEvent(c, copied[i]));
    OK(aclrtMemcpyAsync(bytes + r * kBytes, kBytes, to[i], kBytes, kToHost, c));
    OK(aclrtRecordEvent(read[i], c));
  }
  for (int i = 0; i < kSlots; ++i) OK(aclrtSynchronizeEvent(read[i]));
  for (int r = 0; r < rounds; ++r) {
    for (size_t k = 0; k < kBytes; k += 4093) CHECK(bytes[r * kBytes + k] == (r & 0xff));
  }
  float ms = -1;
  OK(aclrtEventElapsedTime(&ms, read[(rounds - 2) % kSlots], read[(rounds - 1) % kSlots]));
  CHECK(ms >= 0);
  int status = 0;
  OK(aclrtQueryEventStatus(read[0], &status));
  CHECK(status == 1);
  for (int i = 0; i < kSlots; ++i) {
    OK(aclrtDestroyEvent(filled[i]));
    OK(aclrtDestroyEvent(copied[i]));
    OK(aclrtDestroyEvent(read[i]));
    OK(aclrtFree(from[i]));
    OK(aclrtFree(to[i]));
  }
  OK(aclrtFreeHost(host));
  for (auto s : {a, b, c}) OK(aclrtDestroyStream(s));
}

// Allocate, use and free from several threads against the device's capacity.
void memory(int scale) {
  size_t free_before = 0, total = 0, free_after = 0;
  OK(aclrtGetMemInfo(1, &free_before, &total));
  std::atomic<int> refused{0};
  in_threads(4, [&](int t) {
    std::minstd_rand random(100 + t);
    aclrtStream stream;
    OK(aclrtCreateStream(&stream));
    std::vector<std::pair<void*, size_t>> held;
    for (int i = 0; i < 40 * scale; ++i) {
      const size_t size = 1 + random() % (8u << 20);
      void* p = nullptr;
      const aclError code = aclrtMalloc(&p, size, 0);
      if (code == 207001) {
        CHECK(std::string(aclGetRecentErrMsg()).find("out of memory") != std::string::npos);
        ++refused;
      } else {
        OK(code);
        CHECK(aloftDeviceOf(p) == 0 && aloftDeviceOf(static_cast<char*>(p) + size - 1) == 0);
        CHECK(aloftCheckRange(p, size) == 0);
        const int mark = static_cast<int>(random() % 200) + 1;
        unsigned char first = 99, last = 0;
        OK(aclrtMemcpy(&first, 1, p, 1, kToHost));
        CHECK(first == 0);  // fresh pages read as zero
        OK(aclrtMemsetAsync(p, size, mark, size, stream));
        OK(aclrtSynchronizeStream(stream));
        OK(aclrtMemcpy(&last, 1, static_cast<char*>(p) + size - 1, 1, kToHost));
        CHECK(last == mark);
        held.emplace_back(p, size);
      }
      if (held.size() > 4 || code != 0) {
        while (held.size() > (code ? 0u : 2u)) {
          OK(aclrtFree(held.back().first));
          held.pop_back();
        }
      }
    }
    for (auto& [p, size] : held) OK(aclrtFree(p));
    OK(aclrtDestroyStream(stream));
  });
  OK(aclrtGetMemInfo(1, &free_after, &total));
  CHECK(free_before == free_after);
  void* p = nullptr;
  FAILS(aclrtMalloc(&p, total + 1, 0), 207001, "out of memory");
  OK(aclrtMalloc(&p, free_after - (1 << 20), 0));  // nearly all of it, untouched
  OK(aclrtMemset(p, free_after - (1 << 20), 0, free_after - (1 << 20)));
  OK(aclrtFree(p));
}

// Zero fills skip pages that were never touched and clear those that were.
void zero_fill(int scale) {
  constexpr size_t kBytes = 24u << 20;
  void* p = nullptr;
  OK(aclrtMalloc(&p, kBytes, 0));
  auto* bytes = static_cast<unsigned char*>(p);
  std::minstd_rand random(5);
  for (int i = 0; i < 20 * scale; ++i) {
    const size_t from = random() % kBytes, size = 1 + random() % (kBytes - from);
    for (int k = 0; k < 50; ++k) bytes[random() % kBytes] = 7;
    OK(aclrtMemset(bytes + from, size, 0, size));
    for (size_t k = from; k < from + size; k += 1021) CHECK(bytes[k] == 0);
    CHECK(bytes[from] == 0 && bytes[from + size - 1] == 0);
  }
  std::memset(bytes, 3, kBytes);
  OK(aclrtMemset(bytes + 100, kBytes - 200, 0, kBytes - 200));
  CHECK(bytes[99] == 3 && bytes[100] == 0 && bytes[kBytes - 101] == 0 && bytes[kBytes - 100] == 3);
  OK(aclrtFree(p));
}

struct Properties {
  int32_t handle_type = 0, allocation_type = 0, attribute = 4;
  uint32_t device = 0;
  int32_t location = 1;
  uint64_t reserved = 0;
};

// Physical pages mapped piece by piece into one reservation, exported and imported.
void virtual_memory(int scale) {
  constexpr size_t kPiece = 2u << 20;
  const Properties properties;
  size_t free_before = 0, free_after = 0, total = 0;
  OK(aclrtGetMemInfo(1, &free_before, &total));
  in_threads(3, [&](int t) {
    for (int round = 0; round < 4 * scale; ++round) {
      void* base = nullptr;
      OK(aclrtReserveMemAddress(&base, 16 * kPiece, 0, nullptr, 1));
      CHECK(aloftDeviceOf(base) == -2);
      auto* bytes = static_cast<char*>(base);
      void* handles[4];
      for (int i = 0; i < 4; ++i) {
        OK(aclrtMallocPhysical(&handles[i], kPiece, &properties, 0));
        OK(aclrtMapMem(bytes + i * kPiece, kPiece, 0, handles[i], 0));
      }
      CHECK(aloftCheckRange(base, 4 * kPiece) == 0);
      CHECK(aloftCheckRange(base, 4 * kPiece + 1) != 0);
      OK(aclrtMemset(base, 4 * kPiece, t + 1, 4 * kPiece));  // across the pieces
      FAILS(aclrtMapMem(bytes + kPiece, kPiece, 0, handles[0], 0), 100000, "already");
      FAILS(aclrtReleaseMemAddress(base), 100000, "still mapped");
      OK(aclrtUnmapMem(bytes + kPiece));
      CHECK(aloftCheckRange(base, 2 * kPiece) != 0);
      OK(aclrtMapMem(bytes + 8 * kPiece, kPiece, 0, handles[1], 0));  // the same pages elsewhere
      CHECK(bytes[8 * kPiece + 5] == t + 1);
      uint64_t shareable = 0;
      void* imported = nullptr;
      OK(aclrtMemExportToShareableHandle(handles[2], 0, 0, &shareable));
      OK(aclrtMemImportFromShareableHandle(shareable, 0, &imported));
      OK(aclrtMapMem(bytes + 12 * kPiece, kPiece, 0, imported, 0));
      volatile char* same = bytes;  // two addresses of one byte: the compiler may not reorder them
      same[2 * kPiece + 77] = 55;
      CHECK(same[12 * kPiece + 77] == 55);
      OK(aclrtUnmapMem(bytes + 12 * kPiece));
      OK(aclrtFreePhysical(imported));
      for (int i = 0; i < 4; ++i) OK(aclrtFreePhysical(handles[i]));
      CHECK(bytes[3 * kPiece] == t + 1);  // the mapping keeps the pages
      for (int i : {0, 2, 3, 8}) OK(aclrtUnmapMem(bytes + i * kPiece));
      OK(aclrtReleaseMemAddress(base));
    }
  });
  OK(aclrtGetMemInfo(1, &free_after, &total));
  CHECK(free_before == free_after);
  void* p = nullptr;
  OK(aclrtMalloc(&p, 10000, 0));
  char key[65];
  OK(aclrtIpcMemGetExportKey(static_cast<char*>(p) + 100, 500, key, sizeof key, 0));
  void* again = nullptr;
  OK(aclrtIpcMemImportByKey(&again, key, 0));
  static_cast<char*>(p)[100] = 42;
  CHECK(*static_cast<char*>(again) == 42 && aloftCheckRange(again, 500) == 0 && aloftCheckRange(again, 501) != 0);
  OK(aclrtIpcMemClose(key));
  CHECK(aloftDeviceOf(again) == -2);
  OK(aclrtFree(p));
}

constexpr int kCounters = 512;

// A large block moves when it is exported: what it held stays, and no write of a running stream is lost.
void exports(int scale) {
  constexpr size_t kBytes = 6u << 20;
  for (int round = 0; round < scale; ++round) {
    void *p = nullptr, *again = nullptr;
    OK(aclrtMalloc(&p, kBytes, 0));
    auto* bytes = static_cast<unsigned char*>(p);
    OK(aclrtMemset(p, kBytes, 0, kBytes));
    OK(aclrtMemset(bytes + kBytes / 2, 4096, 7, 4096));
    char key[65];
    std::atomic<bool> exported{false};
    in_threads(3, [&](int t) {
      if (t == 2) {
        OK(aclrtIpcMemGetExportKey(p, kBytes, key, sizeof key, 0));
        exported = true;
        return;
      }
      aclrtStream s;
      OK(aclrtCreateStream(&s));
      auto* counters = static_cast<uint32_t*>(p) + t * kCounters;
      for (int i = 0; i < 50 || !exported; ++i) {
        OK(aloft::launch(s, "count", [counters] {
          for (int k = 0; k < kCounters; ++k) ++counters[k];
          return aclError{0};
        }));
        OK(aclrtSynchronizeStream(s));
      }
      for (int k = 1; k < kCounters; ++k) CHECK(counters[k] == counters[0]);
      OK(aclrtDestroyStream(s));
    });
    OK(aclrtIpcMemImportByKey(&again, key, 0));
    CHECK(std::memcmp(p, again, kBytes) == 0);
    CHECK(bytes[kBytes / 2] == 7 && bytes[kBytes / 2 + 4096] == 0);
    bytes[1] = 99;
    CHECK(static_cast<unsigned char*>(again)[1] == 99);
    OK(aclrtMemset(p, kBytes, 0, kBytes));
    CHECK(static_cast<unsigned char*>(again)[kBytes / 2] == 0);
    OK(aclrtIpcMemClose(key));
    OK(aclrtIpcMemClose(key));
    OK(aclrtFree(p));
  }
}

// Wrong calls are refused with a code and a text that says what is wrong.
void refusals(int scale) {
  void *p = nullptr, *q = nullptr;
  char host[64] = {};
  OK(aclrtMalloc(&p, 4096, 0));
  FAILS(aclrtMemcpy(p, 32, host, 64, kToDevice), 100000, "do not fit");
  FAILS(aclrtMemcpy(static_cast<char*>(p) + 4090, 64, host, 64, kToDevice), 107000, "past the end");
  FAILS(aclrtMemcpy(host, 64, host, 64, kToHost), 107000, "not device memory");
  FAILS(aclrtMemcpy(p, 64, p, 64, kToDevice), 107000, "the kind says host");
  FAILS(aclrtMemset(host, 64, 0, 64), 107000, "not device memory");
  FAILS(aclrtMalloc(&q, 0, 0), 100000, "size is 0");
  FAILS(aclrtFree(static_cast<char*>(p) + 8), 107000, "was not returned");
  OK(aclrtFree(p));
  FAILS(aclrtFree(p), 107000, "free already");
  FAILS(aclrtMemcpy(p, 64, host, 64, kToDevice), 107000, "not device memory");
  FAILS(aclrtSetDevice(1000), 107001, "does not exist");
  FAILS(aclrtSynchronizeStream(host), 107003, "not a stream");
  FAILS(aclrtRecordEvent(host, nullptr), 100000, "not an event");
  std::thread([] { FAILS(aclrtSynchronizeStream(nullptr), 107002, "no current context"); }).join();
}

// A failing node: at once inline, at the next synchronisation otherwise; what follows it does not run.
void failures(int scale) {
  aclrtStream s;
  aclrtEvent e;
  OK(aclrtCreateStream(&s));
  OK(aclrtCreateEventExWithFlag(&e, 1));
  for (int i = 0; i < 5 * scale; ++i) {
    std::atomic<int> ran{0};
    auto broken = [] {
      aloftSetError("the kernel broke");
      return aclError{507015};
    };
    if (inline_streams()) {
      FAILS(aloft::launch(s, "broken", broken), 507015, "broke");
    } else {
      OK(aloft::launch(s, "broken", broken));
      OK(aloft::launch(s, "after", [&] {
        ++ran;
        return aclError{0};
      }));
      OK(aclrtRecordEvent(e, s));
      FAILS(aclrtSynchronizeEvent(e), 507015, "broke");
      FAILS(aclrtSynchronizeStream(s), 507015, "broke");
      CHECK(ran == 0);
    }
    OK(aloft::launch(s, "next", [&] {
      ++ran;
      return aclError{0};
    }));
    OK(aclrtSynchronizeStream(s));
    CHECK(ran == 1);
  }
  OK(aclrtDestroyEvent(e));
  OK(aclrtDestroyStream(s));
}

// Values: a wait issued before the write, one write releases it; a wait nobody can satisfy is reported, not endured.
void values(int scale) {
  void* p = nullptr;
  OK(aclrtMalloc(&p, 32, 0));
  aclrtStream a, b;
  OK(aclrtCreateStream(&a));
  OK(aclrtCreateStream(&b));
  for (int i = 0; i < 30 * scale; ++i) {
    std::atomic<int> ran{0};
    OK(aclrtValueWait(p, 1, 1, a));
    OK(aclrtValueWrite(p, 0, 0, a));
    OK(aloft::launch(a, "behind", [&] {
      ++ran;
      return aclError{0};
    }));
    int status = 0;
    OK(aclrtStreamQuery(a, &status));
    CHECK(status == 1 && ran == 0);
    if (i % 5 == 0) FAILS(aclrtSynchronizeStreamWithTimeout(a, 1), 507046, "after 1 ms");
    OK(aclrtValueWrite(p, 1, 0, b));
    OK(aclrtSynchronizeStream(a));
    CHECK(ran == 1);
  }
  OK(aclrtValueWait(p, 1, 1, a));
  std::atomic<int> dropped{0};
  OK(aloft::launch(a, "dropped", [&] {
    ++dropped;
    return aclError{0};
  }));
  FAILS(aclrtSynchronizeStream(a), 507046, "aclrtValueWait");
  CHECK(dropped == 0);
  OK(aclrtSynchronizeStream(a));  // usable again
  // Released by another host thread while this one waits.
  OK(aclrtValueWait(p, 5, 0, a));
  std::thread([&] {
    OK(aclrtSetDevice(0));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    OK(aclrtValueWrite(p, 9, 0, b));
  }).detach();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  OK(aclrtSynchronizeStream(a));
  // A stream that waits can be thrown away.
  OK(aclrtMemset(p, 32, 0, 32));
  OK(aclrtValueWait(p, 1, 1, a));
  OK(aclrtDestroyStreamForce(a));
  OK(aclrtDestroyStream(b));
  OK(aclrtFree(p));
}

// Streams and events come and go while others work.
void churn(int scale) {
  in_threads(3, [&](int t) {
    for (int i = 0; i < 25 * scale; ++i) {
      aclrtStream s, other;
      aclrtEvent e;
      OK(aclrtCreateStream(&s));
      OK(aclrtCreateStream(&other));
      OK(aclrtCreateEventExWithFlag(&e, 1));
      auto value = std::make_shared<std::vector<int>>();
      for (int k = 0; k < 3; ++k) {
        OK(aloft::launch(s, "append", [value, k] {
          value->push_back(k);
          return aclError{0};
        }));
      }
      OK(aclrtRecordEvent(e, s));
      OK(aclrtStreamWaitEvent(other, e));
      OK(aclrtDestroyEvent(e));  // what is queued keeps it
      OK(aloft::launch(other, "append", [value] {
        value->push_back(3);
        return aclError{0};
      }));
      OK(aclrtSynchronizeStream(other));
      CHECK((*value == std::vector<int>{0, 1, 2, 3}));
      OK(aclrtDestroyStream(s));
      OK(aclrtDestroyStream(other));
      FAILS(aclrtSynchronizeStream(s), 107003, "not a stream");
    }
  });
  OK(aclrtSynchronizeDevice());
}

// Not a test of correctness: prints what a look-up and a launch cost.
void cost(int scale) {
  std::vector<void*> blocks(200);
  for (auto& p : blocks) OK(aclrtMalloc(&p, 4096, 0));
  const auto start = std::chrono::steady_clock::now();
  const char* mode = std::getenv("ALOFT_STREAMS");
  const int kLookups = mode && std::string(mode) == "fuzz" ? 500 : 50000 * scale;
  int sum = 0;
  for (int i = 0; i < kLookups; ++i) sum += aloftDeviceOf(blocks[i * 7 % 200]);
  const auto middle = std::chrono::steady_clock::now();
  for (int i = 0; i < kLookups; ++i) OK(aloft::launch(nullptr, "nothing", [] { return aclError{0}; }));
  OK(aclrtSynchronizeStream(nullptr));
  const auto end = std::chrono::steady_clock::now();
  CHECK(sum == 0);
  std::printf("cost: look-up %.0f ns, launch %.0f ns\n",
              std::chrono::duration<double, std::nano>(middle - start).count() / kLookups,
              std::chrono::duration<double, std::nano>(end - middle).count() / kLookups);
  for (auto& p : blocks) OK(aclrtFree(p));
}

}  // namespace

int main(int argc, char** argv) {
  const int scale = argc > 1 ? std::atoi(argv[1]) : 1;
  std::vector<Scenario> all{{"fifo", fifo},
                            {"values", values},
                            {"pipeline", pipeline},
                            {"memory", memory},
                            {"zero_fill", zero_fill},
                            {"virtual_memory", virtual_memory},
                            {"exports", exports},
                            {"refusals", refusals},
                            {"failures", failures},
                            {"churn", churn},
                            {"cost", cost}};
  for (const Scenario& scenario : graph_scenarios()) all.push_back(scenario);
  for (const Scenario& scenario : beside_scenarios()) all.push_back(scenario);
  for (const Scenario& scenario : all) {
    if (argc > 2 && std::string(argv[2]) != scenario.name) continue;
    OK(aclrtSetDevice(0));
    const auto start = std::chrono::steady_clock::now();
    scenario.run(scale);
    std::printf("%s: ok, %.2f s\n", scenario.name,
                std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    std::fflush(stdout);
  }
  return 0;
}
