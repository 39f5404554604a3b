#!/bin/sh
# Fetches the headers of CUDA 12.9 from PyPI into .cuda12/ (a few MiB): gorgonia.org/cu v0.9.6 does not compile against those of CUDA 13. Prints their folder.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
[ -x .cuda12/bin/python ] || "$PYTHON" -m venv .cuda12
.cuda12/bin/python -m pip install -q --disable-pip-version-check 'nvidia-cuda-runtime-cu12==12.9.*'
ls -d "$PWD"/.cuda12/lib/python3*/site-packages/nvidia/cuda_runtime/include
