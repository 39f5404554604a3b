// What a profiler sees of loads, back-ups and compaction. A process of its own, started with NVTX_INJECTION64_PATH: NVTX looks for its tool
// once.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "../open_engine.hpp"

namespace hicache_test {
namespace {

// What the counting tool counted. NVTX has loaded it, so opening it again gives the same copy.
class Tool {
public:
  Tool() : handle_(dlopen(std::getenv("NVTX_INJECTION64_PATH"), RTLD_NOW)) {}
  uint64_t started(uint32_t activity) const { return call("profiler_started", activity); }
  uint64_t pages(uint32_t activity) const { return call("profiler_pages", activity); }
  uint64_t ended() const { return reinterpret_cast<uint64_t (*)()>(dlsym(handle_, "profiler_ended"))(); }

private:
  uint64_t call(const char *name, uint32_t activity) const {
    return reinterpret_cast<uint64_t (*)(uint32_t)>(dlsym(handle_, name))(activity + 1); // Categories count from 1.
  }
  void *handle_;
};

TEST(Profiler, SeesTransfersAndMovesWithTheirPages) {
  ASSERT_NE(std::getenv("NVTX_INJECTION64_PATH"), nullptr) << "run with it, as ctest does";
  ASSERT_EQ(hicache_profiler_listens(), 1u);
  const Tool tool;
  OpenEngine engine{EngineShape{}};
  const Pages pages = engine.alloc(20);
  const Pages host = engine.host_alloc(kFull, 20);
  const auto copies = OpenEngine::copies(kFull, pages, host);
  engine.back_up(copies);
  engine.await_one();
  EXPECT_EQ(tool.started(HICACHE_RANGE_BACK_UP), 1u);
  EXPECT_EQ(tool.pages(HICACHE_RANGE_BACK_UP), 20u);
  EXPECT_EQ(tool.ended(), 1u);

  Pages odd;
  for (size_t i = 1; i < pages.size(); i += 2) odd.push_back(pages[i]);
  engine.free(odd);
  const hicache_compact_result_t result = engine.compact();
  EXPECT_GT(result.moved_pages, 0u);
  EXPECT_EQ(tool.pages(HICACHE_RANGE_COMPACTION), result.moved_pages);
  EXPECT_EQ(tool.ended(), 1 + tool.started(HICACHE_RANGE_COMPACTION));

  const uint64_t before = tool.ended();
  const uint64_t range = hicache_range_start(HICACHE_RANGE_MATCH, 7);
  EXPECT_NE(range, 0u);
  EXPECT_EQ(tool.started(HICACHE_RANGE_MATCH), 1u);
  EXPECT_EQ(tool.pages(HICACHE_RANGE_MATCH), 7u);
  hicache_range_end(range);
  hicache_range_end(0);
  EXPECT_EQ(tool.ended(), before + 1);
  EXPECT_EQ(hicache_range_start(HICACHE_RANGE_COUNT, 1), 0u) << "an unknown activity";
}

} // namespace
} // namespace hicache_test
