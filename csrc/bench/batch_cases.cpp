// A server's decode step over a batch, through C: what the Go figure of the same work is compared with.
#include "bench.hpp"

namespace hicache::bench {
namespace {

constexpr uint32_t kSequences = 256, kTokens = 128, kPageTokens = 16, kRow = kTokens / kPageTokens;

Shape decode_shape() {
  Shape shape = two_pools(20'000);
  for (PoolShape &pool : shape.pools) pool.page_tokens = kPageTokens;
  shape.device_bytes *= kPageTokens;
  return shape;
}

// 256 sequences that grow by a token a step, with a ragged table of FULL and a padded one of SWA.
class Decoding {
public:
  explicit Decoding(Engine &engine) : engine_(engine) {
    error_.struct_size = sizeof error_;
    for (uint32_t i = 0; i < kSequences; i++) sequences_[i] = {&pages_[size_t(i) * kRow], 0, kRow, 0, 0, HICACHE_NO_PAGE, 0};
    tables_[0] = {kFull, HICACHE_TABLE_RAGGED, 0, 0, ids_[0].data(), indptr_.data(), nullptr, last_.data(), nullptr, kSequences * kRow, 0};
    tables_[1] = {kSwa, HICACHE_TABLE_PADDED, 0, kRow, ids_[1].data(), nullptr, nullptr, nullptr, nullptr, kSequences * kRow, 0};
    batch_.struct_size = sizeof batch_;
    batch_.owner_pool = kFull;
    batch_.sequences = sequences_.data();
    batch_.sequence_count = kSequences;
    batch_.tables = tables_;
    batch_.table_count = 2;
  }
  ~Decoding() { end(); }
  Decoding(const Decoding &) = delete;
  Decoding &operator=(const Decoding &) = delete;

  // Sequences of half their length.
  void begin() {
    end();
    for (hicache_sequence_t &sequence : sequences_) sequence.new_token_count = kTokens / 2;
    step();
    for (hicache_sequence_t &sequence : sequences_) sequence.new_token_count = 1;
  }
  void step() { check(hicache_batch_step(engine_.get(), &batch_, &batch_.previous, &error_), error_, "batch_step"); }

private:
  void end() {
    if (batch_.previous == 0) return;
    check(hicache_step_close(engine_.get(), batch_.previous, &error_), error_, "step_close");
    batch_.previous = 0;
    for (hicache_sequence_t &sequence : sequences_) {
      engine_.free(kFull, sequence.vpages, sequence.vpage_count);
      sequence.vpage_count = sequence.token_count = 0;
    }
  }

  Engine &engine_;
  hicache_error_t error_{};
  Pages pages_ = Pages(kSequences * kRow);
  std::vector<hicache_sequence_t> sequences_ = std::vector<hicache_sequence_t>(kSequences);
  std::vector<hicache_kernel_id_t> ids_[2] = {std::vector<hicache_kernel_id_t>(kSequences * kRow),
                                              std::vector<hicache_kernel_id_t>(kSequences *kRow)};
  std::vector<int32_t> indptr_ = std::vector<int32_t>(kSequences + 1), last_ = std::vector<int32_t>(kSequences);
  hicache_batch_table_t tables_[2] = {};
  hicache_batch_t batch_{};
};

} // namespace

void decode_step(const Settings &settings) {
  Engine engine(decode_shape());
  Decoding decoding(engine);
  const uint32_t rounds = settings.quick ? 1 : 20, steps = kTokens / 2;
  for (uint32_t run = 0; run < settings.runs + 1; run++) {
    double spent = 0;
    for (uint32_t round = 0; round < rounds; round++) {
      decoding.begin();
      const double start = thread_seconds();
      for (uint32_t i = 0; i < steps; i++) decoding.step();
      spent += thread_seconds() - start;
    }
    if (run == 0) continue; // Warm.
    emit({"decode step: extend, page tables, close, through C", "256 sequences of 4 to 8 pages, FULL+SWA", "us",
          spent / rounds / steps * 1e6, "", 0});
  }
}

} // namespace hicache::bench
