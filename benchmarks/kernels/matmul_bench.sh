#!/bin/bash
# Builds (into build/) and runs the benchmark of the matrix products against the libraries `make build` made.
# SHAPE=text: only shapes whose name has it. LAYOUT=nz|nz_t|nk|kn. ALOFT_ISA, ALOFT_THREADS as everywhere.
set -e
cd "$(dirname "$0")/../.."
here=benchmarks/kernels out=build/bench
. $here/library.sh
mkdir -p $out
flags="-O2 -std=c++17 -Icsrc"
g++ $flags -mavx2 -mfma -c $here/matmul_bench_avx2.cpp -o $out/avx2.o
g++ $flags -mavx512f -c $here/matmul_bench_avx512.cpp -o $out/avx512.o
g++ $flags $here/matmul_bench.cpp $out/avx2.o $out/avx512.o -o $out/matmul_bench -L"$lib" -laloft_kernels -Wl,-rpath,"$lib"
exec $out/matmul_bench "$@"
