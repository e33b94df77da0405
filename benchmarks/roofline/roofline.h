/* Shared by the roofline programs: a thread per processor, a wall clock, one JSON line out. */
#ifndef ALOFT_ROOFLINE_H
#define ALOFT_ROOFLINE_H
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int default_threads(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

/* Runs body(thread index, argument) on n threads at once; seconds from first start to last end. */
struct task {
  void (*body)(int, void*);
  void* argument;
  int index;
};
static void* task_main(void* p) {
  struct task* t = (struct task*)p;
  t->body(t->index, t->argument);
  return NULL;
}
static double run_threads(int n, void (*body)(int, void*), void* argument) {
  pthread_t threads[256];
  struct task tasks[256];
  if (n > 256) n = 256;
  const double start = now();
  for (int i = 0; i < n; ++i) {
    tasks[i] = (struct task){body, argument, i};
    pthread_create(&threads[i], NULL, task_main, &tasks[i]);
  }
  for (int i = 0; i < n; ++i) pthread_join(threads[i], NULL);
  return now() - start;
}
#endif
