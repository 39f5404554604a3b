#!/usr/bin/env bash
# clang-tidy over csrc, as many at once as there are processors. Takes minutes, so it is not part of lint.
set -u
cd "$(dirname "$0")/.." || exit 1
for tidy in clang-tidy clang-tidy-14 clang-tidy-15 clang-tidy-16 none; do command -v "$tidy" >/dev/null 2>&1 && break; done
[ "$tidy" != none ] || { echo "tidy: clang-tidy is not installed"; exit 1; }
[ -f build/compile_commands.json ] || { echo "tidy: build/compile_commands.json is missing: make lib"; exit 1; }
# The count of suppressed warnings of system headers goes to stderr and says nothing.
git ls-files 'csrc/*.cpp' | grep -vE '^csrc/(test|bench|fuzz)/' | xargs -P "$(nproc)" -n 4 "$tidy" -quiet -p build 2>/dev/null
