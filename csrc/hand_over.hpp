// Hand-over of pages between two engines of a process: what hicache_hand_over does once its arguments have been read.
#pragma once

#include <vector>

#include "engine.hpp"

namespace hicache {

// One call. On either side it is a step on a stream of the library's own: open, the step pins the pages and follows what touched them;
// closed, it leaves a fence for whoever comes after. Where copies run behind the call, both happen under both locks.
class HandOver {
public:
  HandOver(Engine &source, Engine &target) : source_(source, "source"), target_(target, "target") {}

  // Takes both engines' locks, in one order for all callers. `request` has been read with its lines; no array of it is NULL.
  Status run(const hicache_hand_over_t &request, ErrorDetail *error);

private:
  struct Side {
    Side(Engine &of, const char *called) : engine(of), name(called) {}
    Engine &engine;
    const char *name;
    std::vector<hicache_pages_t> lines;
    hicache_step_t step = 0;
  };

  Status check_engines(ErrorDetail *error);
  Status check_layouts(const hicache_hand_over_line_t &line, ErrorDetail *error) const;
  Status check_targets(bool may_be_held, ErrorDetail *error) const;
  Status check_sources(ErrorDetail *error) const;
  void read_lines(const hicache_hand_over_t &request);
  // Looks the pages up and holds them. On an error nothing is held.
  Status begin(const hicache_hand_over_t &request, ErrorDetail *error);
  Status hold(Side *side, bool out, uint64_t stream, ErrorDetail *error);
  Status find_places(ErrorDetail *error);
  void mark_arrivals(bool begin);
  // Closes a side's step; under its lock.
  Status let_go(Side *side, ErrorDetail *error);
  void count();
  // INVALID_ARGUMENT and so on, said of a side.
  Status of_side(const Side &side, Status status, ErrorDetail *error) const;

  Side source_, target_;
  std::vector<PeerCopy> copies_;
};

} // namespace hicache
