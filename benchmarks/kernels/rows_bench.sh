#!/bin/bash
# Builds (into build/) and runs the benchmark of operators on rows against the libraries `make build` made.
set -e
cd "$(dirname "$0")/../.."
here=benchmarks/kernels out=build/bench
. $here/library.sh
mkdir -p $out
g++ -O2 -std=c++17 -Icsrc $here/rows_bench.cpp -o $out/rows_bench -L"$lib" -laloft_kernels -Wl,-rpath,"$lib"
exec $out/rows_bench "$@"
