#!/bin/sh
# On the machine with the GPU, from the folder that h200_pack.sh filled: runs tests, bars, interference and the sanitizer, and writes logs, one JSON file and one
# Markdown file to $1. In under ten minutes. PARTS="tests bench interference sanitizer ncu" chooses.
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
OUT=${1:-$HERE/results}
PARTS=${PARTS:-tests bench interference sanitizer}
mkdir -p "$OUT"
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-32} HICACHE_TEST_KERNELS="$HERE/hicache_test_kernels.fatbin" PYTHONUNBUFFERED=1
nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current,memory.total --format=csv >"$OUT/gpu.txt" 2>&1
part() { case " $PARTS " in *" $1 "*) return 0 ;; esac; return 1; }
if part tests; then
  timeout -k 5 150 "$HERE/hicache_device_tests" >"$OUT/tests.log" 2>&1; echo "tests: rc $?"; tail -12 "$OUT/tests.log"
fi
if part bench; then
  timeout -k 5 200 "$HERE/hicache_device_bench" ${BENCH_PARTS:-} >"$OUT/bench.jsonl" 2>"$OUT/bench.err"; echo "bench: rc $?"; cat "$OUT/bench.jsonl"; tail -5 "$OUT/bench.err"
fi
if part interference; then
  timeout -k 5 150 python3 "$HERE/h200_interference.py" "$HERE/libhicache_device_bench_library.so" >"$OUT/interference.jsonl" 2>"$OUT/interference.err"
  echo "interference: rc $?"; cat "$OUT/interference.jsonl"; tail -5 "$OUT/interference.err"
fi
if part sanitizer; then
  for tool in memcheck racecheck synccheck; do # initcheck does not end in 90 s on these tests
    timeout -k 5 90 compute-sanitizer --tool $tool --error-exitcode 9 "$HERE/hicache_device_tests" \
      --gtest_filter='*Mirror*:*Stamps*:*AMoveWaits*:*PageWork*' >"$OUT/sanitizer_$tool.log" 2>&1
    echo "compute-sanitizer $tool: rc $?"; grep -E "ERROR SUMMARY|RACECHECK SUMMARY|PASSED|FAILED" "$OUT/sanitizer_$tool.log" | tail -3
  done
fi
if part ncu; then
  timeout -k 5 120 ncu --clock-control none --csv --launch-count 40 --metrics gpu__time_duration.sum,dram__bytes.sum.per_second,sm__warps_active.avg.pct_of_peak_sustained_active \
    "$HERE/hicache_device_bench" moves ids >"$OUT/ncu.csv" 2>"$OUT/ncu.err"; echo "ncu: rc $?"; grep -c hicache_ "$OUT/ncu.csv"
fi
python3 "$HERE/h200_report.py" "$OUT" || true
