#!/bin/bash
# Builds (into build/) and runs the benchmark of the quantised products against the libraries `make build` made.
set -e
cd "$(dirname "$0")/../.."
here=benchmarks/kernels out=build/bench
. $here/library.sh
mkdir -p $out
flags="-O2 -std=c++17 -Icsrc"
g++ $flags -mavx2 -mfma -c $here/matmul_bench_avx2.cpp -o $out/avx2.o
g++ $flags -mavx512f -mavx512vnni -mamx-tile -mamx-int8 -c $here/quant_bench_peak.cpp -o $out/quant_peak.o
g++ $flags $here/quant_bench.cpp $out/avx2.o $out/quant_peak.o -o $out/quant_bench -L"$lib" -laloft_kernels -Wl,-rpath,"$lib"
g++ $flags $here/decode_bench.cpp -o $out/decode_bench -L"$lib" -laloft_kernels -Wl,--enable-new-dtags,-rpath,"$lib"
[ "$1" = build ] || exec $out/quant_bench "$@"
