#!/bin/sh
# Builds what `make h200` runs on a machine with a GPU into out/h200: tests, the bench, its library, the test kernels, and the hicache command, which judges the figures.
# Machines with a GPU need no compiler then. BUILD: a build folder configured with the kernels (make cuda).
set -eu
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build-cuda}
OUT=${OUT_DIR:-out/h200}
cmake -S . -B "$BUILD" -DCMAKE_BUILD_TYPE=Release -DHICACHE_TESTS=ON >/dev/null
peer=
if cmake --build "$BUILD" --target help | grep -q hicache_peer_bench; then peer=hicache_peer_bench; fi
# shellcheck disable=SC2086 # a target or none
cmake --build "$BUILD" -j "${JOBS:-2}" --target $peer hicache_device_tests hicache_tests hicache_device_bench hicache_device_bench_library hicache_test_kernels
mkdir -p "$OUT"
(cd gohicache/cmd/hicache && CGO_ENABLED=0 ${GO:-go} build -trimpath -ldflags '-s -w' -o "$OLDPWD/$OUT/hicache" .)
cp "$BUILD/hicache_device_tests" "$BUILD/hicache_tests" "$BUILD/hicache_device_bench" "$BUILD/libhicache_device_bench_library.so" "$BUILD/hicache_test_kernels.fatbin" \
  tools/h200_interference.py tools/h200_run.sh tools/h200_report.py "$OUT/"
[ -z "$peer" ] || cp "$BUILD/$peer" "$OUT/"
for program in "$OUT"/hicache_* "$OUT"/*.so; do
  case $program in *.fatbin) ;; *) strip --strip-debug "$program" ;; esac
done
du -sh "$OUT"
