#!/bin/sh
# Fetches nvcc and the headers of NVTX from PyPI into .cuda/ (about 150 MiB), where the build looks for it. Nothing outside the folder is touched; needs python3 with venv.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
[ -x .cuda/bin/python ] || "$PYTHON" -m venv .cuda
.cuda/bin/python -m pip install -q --disable-pip-version-check 'nvidia-cuda-nvcc==13.0.*' 'nvidia-nvvm==13.0.*' 'nvidia-cuda-crt==13.0.*' \
  'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cccl==13.0.*' 'nvidia-nvtx==13.0.*'
NVCC=$(ls .cuda/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)
"$NVCC" --version | tail -2
echo "$NVCC"
