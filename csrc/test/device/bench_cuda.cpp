// The bars of the CUDA backend, measured through the backend itself, with the ceilings of the same run beside them.
// hicache_device_bench [--smoke] [part ...]; parts: envelopes small moving layers overlap graph costs moves staged calibration fragments
// ids kernels open, and, when it is named, quanta or launches. --smoke: everything once and small, over the simulated driver.
#include <string_view>

#include "bench.hpp"

using namespace hicache;
using namespace hicache::device_bench;

int main(int argc, char **argv) {
  std::vector<std::string> parts;
  for (int i = 1; i < argc; i++) {
    if (std::string_view(argv[i]) == "--smoke") smoke = true;
    else parts.push_back(argv[i]);
  }
  const auto named = [&](const char *part) { return std::find(parts.begin(), parts.end(), part) != parts.end(); };
  const auto wanted = [&](const char *part) { return parts.empty() || named(part); };
  setvbuf(stdout, nullptr, _IOLBF, 0);
  api().context_set(caller_context());
  if (named("launches")) {
    kernels_alone(false);
    return 0;
  }
  {
    Rig rig(llama(), sized(6 * kGiB), sized(3 * kGiB));
    must_open(rig);
    if (!smoke && rig.backend.device().name() == "simulated") {
      std::printf("{\"error\": \"the simulated driver has no speed; --smoke shows that everything runs\"}\n");
      return 1;
    }
    std::printf("{\"work\": \"machine\", \"gpu\": \"%s\", \"driver_cuda\": %d, \"numa_node\": %d, \"kernels\": \"%s\"}\n",
                rig.backend.device().name().c_str(), api().version, rig.backend.device().numa_node(),
                rig.backend.kernels().available() ? "yes" : rig.backend.kernels().reason().c_str());
    ceilings(rig);
    if (wanted("envelopes")) envelopes(rig, "quanta of 16 MiB");
    if (wanted("small")) small_copies(rig, "quanta of 16 MiB");
    if (wanted("moving")) bus_beside_moves(rig);
    if (wanted("layers")) layered_load(rig);
    if (wanted("overlap")) overlap(rig);
    if (wanted("graph")) graph(rig);
    if (wanted("costs")) call_costs(rig), submit_costs(rig);
    if (wanted("moves")) moves();
  }
  if (wanted("small")) {
    CopyTuning tuning;
    tuning.quantum_bytes = 4 * kMiB;
    Rig rig(llama(), sized(6 * kGiB), sized(3 * kGiB), tuning);
    must_open(rig);
    envelopes(rig, "quanta of 4 MiB");
    small_copies(rig, "quanta of 4 MiB");
  }
  if (named("quanta")) quanta();
  if (wanted("staged")) staged();
  if (wanted("calibration")) calibration();
  if (wanted("fragments")) fragments();
  if (wanted("ids")) ids_and_digests();
  if (wanted("kernels")) kernels_alone(true);
  if (wanted("open")) open_time();
  return 0;
}
