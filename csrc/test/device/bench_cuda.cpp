// The bars of the CUDA backend, measured through the backend itself, with the ceilings of the same run beside them.
// hicache_device_bench [part ...]; parts: envelopes small layers graph costs moves fragments ids open, and quanta when it is named.
#include "bench.hpp"

using namespace hicache;
using namespace hicache::device_bench;

int main(int argc, char **argv) {
  if (std::getenv("HICACHE_SIMULATED") != nullptr) return 2;
  std::vector<std::string> parts(argv + 1, argv + argc);
  auto wanted = [&](const char *part) { return parts.empty() || std::find(parts.begin(), parts.end(), part) != parts.end(); };
  setvbuf(stdout, nullptr, _IOLBF, 0);
  api().context_set(caller_context());
  {
    Rig rig(llama(), 6 * kGiB, 3 * kGiB);
    must_open(rig);
    std::printf("{\"work\": \"machine\", \"gpu\": \"%s\", \"driver_cuda\": %d, \"numa_node\": %d, \"kernels\": \"%s\"}\n",
                rig.backend.device().name().c_str(), api().version, rig.backend.device().numa_node(),
                rig.backend.kernels().available() ? "yes" : rig.backend.kernels().reason().c_str());
    ceilings(rig);
    if (wanted("envelopes")) envelopes(rig, "quanta of 16 MiB");
    if (wanted("small")) small_copies(rig, "quanta of 16 MiB");
    if (wanted("layers")) layered_load(rig);
    if (wanted("graph")) graph(rig);
    if (wanted("costs")) call_costs(rig);
    if (wanted("moves")) moves();
  }
  if (wanted("small")) {
    CopyTuning tuning;
    tuning.quantum_bytes = 4 * kMiB;
    Rig rig(llama(), 6 * kGiB, 3 * kGiB, tuning);
    must_open(rig);
    envelopes(rig, "quanta of 4 MiB");
    small_copies(rig, "quanta of 4 MiB");
  }
  if (!parts.empty() && wanted("quanta")) quanta();
  if (wanted("fragments")) fragments();
  if (wanted("ids")) ids_and_digests();
  if (wanted("open")) open_time();
  return 0;
}
