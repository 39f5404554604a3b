#!/bin/bash
# On a machine with a GPU, from the folder that h200_pack.sh filled: runs tests, bars, interference, sanitizers and ncu, and writes logs, one JSON file and one
# Markdown file to $1. In under ten minutes: each part has a limit, and all of them end BUDGET_S seconds after the start. A part that fails, or that is stopped, is
# named in the report. PARTS="tests bench peer interference sanitizer ncu" chooses, BENCH_PARTS those of the bench.
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
OUT=${1:-$HERE/results}
PARTS=${PARTS:-tests bench peer interference sanitizer ncu}
BUDGET_S=${BUDGET_S:-560}
mkdir -p "$OUT"
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-32} HICACHE_TEST_KERNELS="$HERE/hicache_test_kernels.fatbin" PYTHONUNBUFFERED=1
START=$(date +%s)
STATUS="$OUT/parts.jsonl"
: >"$STATUS"
timeout 20 nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current,memory.total --format=csv,noheader >"$OUT/gpu.txt" 2>&1
GPUS=$(grep -c . "$OUT/gpu.txt" || true)
part() { case " $PARTS " in *" $1 "*) return 0 ;; esac; return 1; }
say() { echo "{\"part\": \"$1\", \"rc\": $2, \"seconds\": $3, \"limit\": $4}" >>"$STATUS"; }

# limited NAME SECONDS COMMAND...: the command, its output in NAME.log unless the command redirects it; stopped after so many seconds or with the budget.
limited() {
  local name=$1 limit=$2 begin left rc
  shift 2
  begin=$(date +%s)
  left=$((BUDGET_S - (begin - START)))
  [ "$limit" -gt "$left" ] && limit=$left
  if [ "$limit" -lt 5 ]; then
    say "$name" 125 0 0
    return 125
  fi
  timeout -k 5 "$limit" "$@" >"$OUT/$name.log" 2>"$OUT/$name.err" </dev/null
  rc=$?
  say "$name" $rc $(($(date +%s) - begin)) "$limit"
  echo "$name: rc $rc"
  return $rc
}
tool() { command -v "$1" >/dev/null 2>&1 || { echo "{\"part\": \"$2\", \"rc\": 127, \"seconds\": 0, \"limit\": 0}" >>"$STATUS"; return 1; }; }

if part tests; then
  # Nothing is timed here, so they may run beside each other. What says nothing about a backend is left out of the suite.
  limited tests_device 150 "$HERE/hicache_device_tests" &
  limited tests_suite 150 "$HERE/hicache_tests" --backend cuda --gtest_filter='-ArenaProperty*:Fences.Whoever*:Golden*:Hammer*:HoleSet*:CallSequences*' &
  for method in direct kernel staged; do
    limited tests_layouts_$method 150 env HICACHE_CUDA_METHOD=$method HICACHE_CUDA_CALIBRATE=0 "$HERE/hicache_tests" --backend cuda --gtest_filter='Matrix/HostLayouts*-*reordered' &
  done
  wait
fi
if part bench; then
  # shellcheck disable=SC2086 # parts are words
  limited bench 200 "$HERE/hicache_device_bench" ${BENCH_PARTS:-}
fi
if part peer && [ "$GPUS" -ge 2 ] && [ -x "$HERE/hicache_peer_bench" ]; then
  limited peer 60 "$HERE/hicache_peer_bench"
fi
if part interference; then
  tool python3 interference && limited interference 150 python3 "$HERE/h200_interference.py" "$HERE/libhicache_device_bench_library.so"
fi
if part sanitizer && tool compute-sanitizer sanitizer; then
  for sanitizer in memcheck racecheck synccheck initcheck; do
    limited sanitizer_${sanitizer}_kernels 100 compute-sanitizer --tool $sanitizer --error-exitcode 9 "$HERE/hicache_device_tests" --gtest_filter='KernelsAlone*' &
    # Not initcheck: over arenas of mapped memory it does not end in minutes.
    [ $sanitizer = initcheck ] || limited sanitizer_${sanitizer}_backend 100 compute-sanitizer --tool $sanitizer --error-exitcode 9 "$HERE/hicache_device_tests" \
      --gtest_filter='*Mirror*:*Stamps*:*AMoveWaits*:*PageWork*' &
  done
  limited sanitizer_memcheck_shapes 100 compute-sanitizer --tool memcheck --error-exitcode 9 "$HERE/hicache_device_tests" --gtest_filter='Kernels.*' &
  wait
fi
if part ncu && tool ncu ncu; then
  limited ncu 90 ncu --clock-control none --csv --print-units base --kernel-name regex:hicache_ --metrics \
    gpu__time_duration.sum,dram__bytes.sum.per_second,dram__throughput.avg.pct_of_peak_sustained_elapsed,gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed,sm__throughput.avg.pct_of_peak_sustained_elapsed,sm__warps_active.avg.pct_of_peak_sustained_active,launch__registers_per_thread \
    "$HERE/hicache_device_bench" launches
fi
timeout 60 python3 "$HERE/h200_report.py" "$OUT"
echo "all parts: $(($(date +%s) - START)) s"
cat "$OUT/results.md"
