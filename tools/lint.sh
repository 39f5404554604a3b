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
modules=$(git ls-files '*go.mod' | grep / | xargs -n 1 dirname)
for module in $modules; do (cd "$module" && run go vet ./... && exit $failed) || failed=1; done

staticcheck=$(pick staticcheck "$(go env GOPATH)/bin/staticcheck")
if [ -n "$staticcheck" ]; then
  run "$staticcheck" ./...
  for module in $modules; do (cd "$module" && run "$staticcheck" ./... && exit $failed) || failed=1; done
else missing staticcheck; fi

format=$(pick clang-format clang-format-14 clang-format-15 clang-format-16)
if [ -n "$format" ]; then
  run "$format" --dry-run -Werror $(git ls-files 'csrc/*.cpp' 'csrc/*.hpp' 'cuda/*.cu' 'cuda/*.cuh' 'bindings/c/*.c')
else missing clang-format; fi

exit $failed
