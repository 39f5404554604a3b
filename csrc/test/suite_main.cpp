// Runs the suite. With --backend cuda, engines that ask for the CPU backend and for nothing that it alone has open on the CUDA backend: on
// a GPU, or on the simulated driver that HICACHE_LIBCUDA names.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

#include "../driver_api.hpp"
#include "../kernel_image.hpp"
#include "open_engine.hpp"

namespace hicache_test {
namespace {

const hicache::DriverApi &driver() {
  static const hicache::DriverLoad load = hicache::load_driver();
  return *load.api;
}

hicache::CuContext context_of_device() {
  static hicache::CuContext context = [] {
    hicache::CuContext made = nullptr;
    hicache::CuDevice device = 0;
    driver().device_get(&device, 0);
    driver().primary_retain(&made, device);
    return made;
  }();
  return context;
}

// Calls copy(api, stream) once all work of the device has ended, and waits for what it queued.
template <class Copy> void behind_all_work(Copy copy) {
  using namespace hicache;
  const DriverApi &api = driver();
  ContextScope inside(api, context_of_device());
  CuStream stream = nullptr;
  CuResult r = api.context_synchronize();
  if (r == cu::kSuccess) r = api.stream_create(&stream, cu::kStreamNonBlocking, 0);
  if (r == cu::kSuccess) r = copy(api, stream);
  if (r == cu::kSuccess) r = api.stream_synchronize(stream);
  if (stream != nullptr) api.stream_destroy(stream);
  EXPECT_EQ(r, cu::kSuccess) << api.describe(r);
}

void read_device(uint64_t address, void *to, uint64_t bytes) {
  behind_all_work([&](const hicache::DriverApi &api, hicache::CuStream stream) {
    return api.copy_async(reinterpret_cast<hicache::CuAddress>(to), address, bytes, stream);
  });
}

void write_device(uint64_t address, const void *from, uint64_t bytes) {
  behind_all_work([&](const hicache::DriverApi &api, hicache::CuStream stream) {
    return api.copy_async(address, reinterpret_cast<hicache::CuAddress>(from), bytes, stream);
  });
}

uint64_t stream_of_number(uint64_t number) {
  static std::map<uint64_t, hicache::CuStream> streams;
  hicache::ContextScope inside(driver(), context_of_device());
  hicache::CuStream &stream = streams[number];
  if (stream == nullptr) { EXPECT_EQ(driver().stream_create(&stream, hicache::cu::kStreamNonBlocking, 0), hicache::cu::kSuccess); }
  return reinterpret_cast<uint64_t>(stream);
}

// Says at the end which tests were on the device and which were not.
class WhereTestsRan : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo &) override { before_ = suite_backend.opened; }
  void OnTestEnd(const testing::TestInfo &test) override {
    if (suite_backend.opened != before_) {
      on_++;
    } else {
      const std::string suite = test.test_suite_name(), name = test.name();
      off_[suite.substr(suite.find('/') + 1) + "." + name.substr(0, name.find('/'))]++;
    }
  }
  void OnTestProgramEnd(const testing::UnitTest &) override {
    std::printf(
        "%u tests opened %llu engines on the CUDA backend. NOT TESTED THERE (no engine, a backend of their own, faults, a buffer of this "
        "process):\n",
        on_, static_cast<unsigned long long>(suite_backend.opened));
    for (const auto &[name, count] : off_) std::printf(count == 1 ? "  %s\n" : "  %s (%u)\n", name.c_str(), count);
  }
  uint64_t before_ = 0;
  unsigned on_ = 0;
  std::map<std::string, unsigned> off_; // By name without what parameterises it.
};

// A method that HICACHE_CUDA_METHOD forces has carried bytes, or nothing was shown about it.
int check_method() {
  std::printf("Bytes over the bus: %llu by the copy engine, %llu by kernel, %llu staged.\n",
              static_cast<unsigned long long>(suite_backend.direct), static_cast<unsigned long long>(suite_backend.kernel),
              static_cast<unsigned long long>(suite_backend.staged));
  const char *method = std::getenv("HICACHE_CUDA_METHOD");
  if (method == nullptr || suite_backend.opened == 0) return 0;
  const std::string_view name = method;
  const uint64_t carried = name == "direct"   ? suite_backend.direct
                           : name == "kernel" ? suite_backend.kernel
                           : name == "staged" ? suite_backend.staged
                                              : 1;
  if (carried != 0) return 0;
  if (name != "direct" && hicache::kernel_image().data == nullptr) {
    std::printf("NOT TESTED: %s needs kernels, and this was built without (make cuda)\n", method);
    return 0;
  }
  std::printf("FAILED: nothing went by the method that HICACHE_CUDA_METHOD forces: %s\n", method);
  return 1;
}

} // namespace
} // namespace hicache_test

int main(int argc, char **argv) {
  using namespace hicache_test;
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; i++) {
    if (std::string_view(argv[i]) == "--backend" && i + 1 < argc && std::string_view(argv[i + 1]) == "cuda") {
      if (const hicache::DriverLoad load = hicache::load_driver(); load.api == nullptr) {
        std::fprintf(stderr, "%s\n", load.reason.c_str());
        return 2;
      }
      suite_backend.backend = HICACHE_BACKEND_CUDA;
      suite_backend.read = read_device;
      suite_backend.write = write_device;
      suite_backend.stream = stream_of_number;
      testing::FLAGS_gtest_death_test_style = "threadsafe"; // A driver does not survive a fork.
      testing::UnitTest::GetInstance()->listeners().Append(new WhereTestsRan);
    }
  }
  const int failed = RUN_ALL_TESTS();
  return suite_backend.backend == HICACHE_BACKEND_CUDA && check_method() != 0 ? 1 : failed;
}
