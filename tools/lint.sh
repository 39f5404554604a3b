#!/usr/bin/env bash
# Lints the tree. A tool that is not installed is named, not passed over in silence.
set -u
cd "$(dirname "$0")/.." || exit 1
failed=0
run() { echo "lint: $*"; "$@" || failed=1; }
missing() { echo "lint: $1 is not installed: its checks were not run"; }
pick() { for name in "$@"; do command -v "$name" 2>/dev/null && return; done; }

unformatted=$(gofmt -l $(git ls-files '*.go'))
if [ -n "$unformatted" ]; then echo "lint: gofmt would change:"; echo "$unformatted"; failed=1; fi
run go vet ./...
(cd gohicache/cmd/hicache && run go vet ./... && exit $failed) || failed=1

staticcheck=$(pick staticcheck "$(go env GOPATH)/bin/staticcheck")
if [ -n "$staticcheck" ]; then
  run "$staticcheck" ./...
  (cd gohicache/cmd/hicache && run "$staticcheck" ./... && exit $failed) || failed=1
else missing staticcheck; fi

format=$(pick clang-format clang-format-14 clang-format-15 clang-format-16)
if [ -n "$format" ]; then
  run "$format" --dry-run -Werror $(git ls-files 'csrc/*.cpp' 'csrc/*.hpp' 'cuda/*.cu' 'cuda/*.cuh' 'bindings/c/*.c')
else missing clang-format; fi

tidy=$(pick clang-tidy clang-tidy-14 clang-tidy-15 clang-tidy-16)
if [ -n "$tidy" ] && [ -f build/compile_commands.json ]; then
  echo "lint: $tidy csrc/*.cpp"
  # The count of suppressed warnings of system headers goes to stderr and says nothing.
  git ls-files 'csrc/*.cpp' | grep -vE '^csrc/(test|bench|fuzz)/' | xargs -P "$(nproc)" -n 4 "$tidy" -quiet -p build 2>/dev/null || failed=1
else missing "clang-tidy (or build/compile_commands.json)"; fi
exit $failed
