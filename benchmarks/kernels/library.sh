# Sourced by the scripts beside it, which stand in the repository's root: `lib` becomes the folder of the kernels that
# `make build` made, where Python finds them (ALOFT_LIB_DIR, the installed package), else in the build's own folder.
python=${PYTHON:-.venv/bin/python}
command -v "$python" > /dev/null || python=python3
lib=$("$python" -c 'from aloft.runtime.choice import library_folder; print(library_folder())' 2> /dev/null) || lib=
if [ ! -e "$lib/libaloft_kernels.so" ]; then
  newest=$(ls -t build/*/libaloft_kernels.so 2> /dev/null | head -n 1)
  lib=$(dirname "${newest:-none/}")
fi
if [ ! -e "$lib/libaloft_kernels.so" ]; then
  echo "There is no libaloft_kernels.so: run make build." >&2
  exit 1
fi
lib=$(readlink -f "$lib")
