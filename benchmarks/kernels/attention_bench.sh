#!/bin/bash
# Builds (into build/) and runs the benchmark of attention against the libraries `make build` made.
# BENCH=text: only lines whose name has it. ALOFT_ISA, ALOFT_THREADS as everywhere.
set -e
cd "$(dirname "$0")/../.."
here=benchmarks/kernels out=build/bench
. $here/library.sh
mkdir -p $out
flags="-O2 -std=c++17 -Icsrc"
g++ $flags -mavx2 -mfma -c $here/matmul_bench_avx2.cpp -o $out/avx2.o
g++ $flags $here/attention_bench.cpp $out/avx2.o -o $out/attention_bench -L"$lib" -laloft_kernels -Wl,-rpath,"$lib"
exec $out/attention_bench "$@"
