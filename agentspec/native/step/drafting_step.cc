#include "step/drafting_step.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <exception>
#include <utility>

#include "drafting/tree_mask.h"
#include "drafting/tree_union.h"
#include "errors.h"

namespace agentspec {
namespace {

// The bytes of the trees of `rows` rows of `width` nodes, in words of 8 bytes.
std::size_t tree_words(std::size_t rows, std::size_t width) {
  return 4 * rows * width + (rows * width * width + 7) / 8;
}

// The integers of the suffix drafts of `rows` rows, in which up to `width` nodes of each have room.
std::size_t packed_integers(std::size_t rows, std::size_t width) { return 3 * rows + 1 + 3 * rows * width; }

}  // namespace

DraftingStep::DraftingStep(Engine& engine, Goodput& suffix_only, Goodput& with_model, std::size_t max_rows,
                           std::size_t max_width, std::int32_t max_drafted, const StepMemory& memory)
    : engine_(engine), planner_(suffix_only, with_model), max_width_(max_width), memory_(memory) {
  const std::size_t columns = max_width - 1;
  if (max_rows < 1 || max_width < 1 || max_drafted < 0 ||
      memory.trees.size() < tree_words(max_rows, max_width) ||
      (!memory.packed.empty() && memory.packed.size() < packed_integers(max_rows, max_width)) ||
      memory.num_nodes.size() != max_rows || memory.first_sources.size() != max_rows ||
      memory.outcomes.size() != max_rows || memory.ends.size() != max_rows ||
      memory.rooms.size() != max_rows || memory.estimated.size() != columns ||
      memory.sizes.size() != columns) {
    throw ConfigError("a step's memory must have room for " + std::to_string(max_rows) + " rows of " +
                      std::to_string(max_width) + " nodes; make larger arrays");
  }
  const std::size_t nodes = max_rows * (static_cast<std::size_t>(max_drafted) + 1);
  batch_.offsets.resize(max_rows + 1);
  batch_.tokens.resize(nodes);
  batch_.parents.resize(nodes);
  batch_.estimates.resize(nodes);
  batch_.sources.resize(nodes);
  batch_.match_lens.resize(max_rows);
  batch_.scores.resize(max_rows);
  ends_.resize(max_rows);
}

void DraftingStep::prepare(Order&& order) {
  const std::size_t b = order.rows.size();
  const PlanningNumbers& planning = order.planning;
  const std::size_t widths = planning.widths.size();
  if (b > memory_.num_nodes.size() || order.width < 1 || order.width > max_width_ ||
      (order.unites && memory_.packed.empty())) {
    throw ConfigError("a step must have at most " + std::to_string(memory_.num_nodes.size()) +
                      " rows of 1 to " + std::to_string(max_width_) + " nodes, got " + std::to_string(b) +
                      " rows of " + std::to_string(order.width));
  }
  if (planning.seconds.size() != widths ||
      (!planning.with_model.empty() && planning.with_model.size() != widths) ||
      planning.promised.size() != planning.fit.size() ||
      (!planning.with_model.empty() && planning.fit.size() != b) ||
      (!order.padding.empty() && order.padding.size() != b) || (order.unites && planning.fit.size() != b)) {
    throw ConfigError("the numbers of a step must be of the same rows and widths");
  }
  order_ = std::move(order);
  is_done_.store(false, std::memory_order_release);
}

void DraftingStep::run() noexcept {
  const auto began = std::chrono::steady_clock::now();
  error_.clear();
  num_lost_ = 0;
  next_ = {};
  try {
    follow();
    draft();
    if (!order_.suffixes) drop_suffixes();
    cut();
    if (order_.unites) {
      pack_for_union();
    } else {
      pack_trees();
    }
  } catch (const std::exception& error) {
    error_ = error.what();
    roots_only();
  }
  try {
    if (error_.empty()) plan();
  } catch (const std::exception& error) {
    error_ = error.what();
  }
  nanoseconds_ = std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count();
  is_done_.store(true, std::memory_order_release);
}

void DraftingStep::follow() {
  for (const WrittenTokens& written : order_.written) {
    const std::size_t b = written.rows.size();
    std::span<const std::int64_t> ends = written.ends;
    if (ends.empty() && b > 0) {
      if (written.table.size() != b * written.columns || written.columns < 2) {
        throw ConfigError("a forward's table must be [" + std::to_string(b) + ", columns]");
      }
      ends_.resize(std::max(ends_.size(), b));
      for (std::size_t row = 0; row < b; ++row) ends_[row] = written.table[(row + 1) * written.columns - 1];
      ends = {ends_.data(), b};
    }
    num_lost_ += engine_.follow(written.rows, written.table, written.columns, ends, written.padding);
  }
  engine_.learn(order_.rows);
}

void DraftingStep::draft() {
  const std::size_t b = order_.rows.size();
  spans_ = {batch_.offsets,    batch_.tokens, batch_.parents,   batch_.estimates, batch_.sources,
            batch_.match_lens, batch_.scores, memory_.outcomes, memory_.rooms};
  const std::span<std::int64_t> ends = memory_.ends.first(b);
  const std::size_t nodes =
      engine_.draft_followed(order_.rows, order_.padding, order_.max_tokens, spans_, ends);
  spans_.offsets = spans_.offsets.first(b + 1);
  spans_.tokens = spans_.tokens.first(nodes);
  spans_.parents = spans_.parents.first(nodes);
  spans_.estimates = spans_.estimates.first(nodes);
  spans_.sources = spans_.sources.first(nodes);
  context_ = 0;
  longest_ = -1;
  for (const std::int64_t end : ends) {
    context_ += std::max<std::int64_t>(end, 0);
    longest_ = std::max(longest_, end);
  }
}

// Leaves each row its root.
void DraftingStep::drop_suffixes() {
  const std::size_t b = order_.rows.size();
  for (std::size_t row = 0; row < b; ++row) {
    const auto first = static_cast<std::size_t>(batch_.offsets[row]);
    batch_.tokens[row] = batch_.tokens[first];
    batch_.parents[row] = -1;
    batch_.estimates[row] = 1.0F;
    batch_.sources[row] = 0;
    batch_.scores[row] = 0.0F;
    batch_.offsets[row] = static_cast<std::int32_t>(row);
  }
  batch_.offsets[b] = static_cast<std::int32_t>(b);
  spans_.tokens = spans_.tokens.first(b);
  spans_.parents = spans_.parents.first(b);
  spans_.estimates = spans_.estimates.first(b);
  spans_.sources = spans_.sources.first(b);
}

// Decides how much of each row is verified, and by which estimates.
void DraftingStep::cut() {
  const std::size_t b = order_.rows.size();
  const auto most = static_cast<std::int32_t>(order_.width - 1);
  for (std::size_t row = 0; row < b; ++row) {
    const std::int32_t first = spans_.offsets[row];
    const std::int32_t drafted = std::min(spans_.offsets[row + 1] - first - 1, most);
    memory_.num_nodes[row] = order_.unites ? std::min(memory_.rooms[row], most) : drafted;
    memory_.first_sources[row] = drafted > 0 ? spans_.sources[static_cast<std::size_t>(first) + 1] : 0;
  }
  const DraftShapes suffix{spans_.offsets, spans_.parents, spans_.estimates};
  const PlanningNumbers& planning = order_.planning;
  // A row's rooms bound what may be verified, and so what the planner may expect.
  if (!planning.fit.empty()) planner_.foresee(suffix, memory_.rooms.first(b), planning);
  expected_ = sum_columns(order_.unites ? planner_.foreseen() : suffix, order_.width - 1,
                          order_.unites ? planning.exponent_united : planning.exponent,
                          {memory_.estimated, memory_.sizes});
}

void DraftingStep::pack_trees() {
  const std::size_t b = order_.rows.size();
  const std::size_t nodes = b * order_.width;
  std::int64_t* const first = memory_.trees.data();
  const std::span<std::int32_t> num_drafted = memory_.num_nodes.first(b);
  depths_.resize(b);
  build_tree_arrays(spans_.offsets, spans_.tokens, spans_.parents, num_drafted, order_.width,
                    {{first, nodes},
                     {first + nodes, nodes},
                     {first + 2 * nodes, nodes},
                     {first + 3 * nodes, nodes},
                     {reinterpret_cast<bool*>(first + 4 * nodes), nodes * order_.width},
                     depths_});
}

// Writes offsets [b + 1], rooms [b], wanted [b], and then tokens, parents and estimates, each of which has
// room for b * width nodes. The device copies all of it, because its size must be known before it is written.
void DraftingStep::pack_for_union() {
  const std::size_t b = order_.rows.size();
  const std::size_t room = b * order_.width;
  std::int32_t* const offsets = memory_.packed.data();
  std::int32_t* const rooms = offsets + b + 1;
  std::int32_t* const wanted = rooms + b;
  std::int32_t* const tokens = wanted + b;
  std::int32_t* const parents = tokens + room;
  std::int32_t* const estimates = parents + room;
  std::size_t at = 0;
  offsets[0] = 0;
  for (std::size_t row = 0; row < b; ++row) {
    const auto first = static_cast<std::size_t>(spans_.offsets[row]);
    const std::size_t size =
        std::min(static_cast<std::size_t>(spans_.offsets[row + 1]) - first, order_.width);
    rooms[row] = memory_.rooms[row];
    wanted[row] = order_.planning.fit[row] != 0 && memory_.ends[row] >= 0 ? 1 : 0;
    std::copy_n(spans_.tokens.begin() + static_cast<std::ptrdiff_t>(first), size, tokens + at);
    std::copy_n(spans_.parents.begin() + static_cast<std::ptrdiff_t>(first), size, parents + at);
    for (std::size_t i = 0; i < size; ++i) {
      estimates[at + i] = std::bit_cast<std::int32_t>(spans_.estimates[first + i]);
    }
    at += size;
    offsets[row + 1] = static_cast<std::int32_t>(at);
  }
}

// Plans the next step as if its drafts were like this step's.
void DraftingStep::plan() {
  if (order_.planning.widths.empty() || order_.rows.size() == 0) return;
  next_ = planner_.plan({spans_.offsets, spans_.parents, spans_.estimates}, static_cast<double>(context_),
                        order_.planning);
}

double DraftingStep::suffixes_followed(std::span<const std::int64_t> table, std::size_t columns,
                                       const ColumnSums& sums) const {
  const std::size_t b = order_.rows.size();
  if (columns < 1 || table.size() != b * columns) {
    throw ConfigError("a verification's table must be [" + std::to_string(b) + ", columns]");
  }
  // After a failure nothing was drafted.
  const DraftShapes drafts =
      error_.empty() ? DraftShapes{spans_.offsets, spans_.parents, spans_.estimates} : DraftShapes{};
  sum_columns(drafts, std::min(order_.width - 1, sums.sizes.size()), 1.0, sums);
  double followed = 0.0;
  for (std::size_t row = 0; row + 1 < drafts.offsets.size(); ++row) {
    const auto first = static_cast<std::size_t>(drafts.offsets[row]);
    const std::size_t size =
        std::min(static_cast<std::size_t>(drafts.offsets[row + 1]) - first, order_.width);
    const auto known =
        std::clamp(table[row * columns], std::int64_t{0}, static_cast<std::int64_t>(columns) - 1);
    const auto text = table.subspan(row * columns + 1, static_cast<std::size_t>(known));
    const FollowedPath found =
        follow_path(spans_.tokens.subspan(first, size), drafts.parents.subspan(first, size),
                    drafts.estimates.subspan(first, size), text);
    followed += static_cast<double>(found.length);
    if (found.length == text.size()) followed += found.beyond;
  }
  return followed;
}

// What is verified after a failure. Nothing is known of any row.
void DraftingStep::roots_only() {
  const std::size_t b = order_.rows.size();
  std::fill_n(memory_.num_nodes.begin(), b, 0);
  std::fill_n(memory_.first_sources.begin(), b, std::uint8_t{0});
  std::fill_n(memory_.rooms.begin(), b, 0);
  std::fill_n(memory_.ends.begin(), b, std::int64_t{-1});
  std::fill(memory_.estimated.begin(), memory_.estimated.end(), 0.0);
  std::fill(memory_.sizes.begin(), memory_.sizes.end(), 0);
  expected_ = 0.0;
  if (order_.unites) {
    std::int32_t* const offsets = memory_.packed.data();
    const std::size_t room = b * order_.width;
    std::fill_n(offsets, packed_integers(b, order_.width), 0);
    for (std::size_t row = 0; row < b; ++row) {
      offsets[row + 1] = static_cast<std::int32_t>(row) + 1;
      offsets[3 * b + 1 + room + row] = -1;
      offsets[3 * b + 1 + 2 * room + row] = std::bit_cast<std::int32_t>(1.0F);
    }
    return;
  }
  // The same layout as build_tree_arrays() gives to rows of one node.
  const std::size_t width = order_.width;
  const std::size_t nodes = b * width;
  std::int64_t* const first = memory_.trees.data();
  bool* const mask = reinterpret_cast<bool*>(first + 4 * nodes);
  std::fill_n(first, nodes, 0);
  std::fill_n(first + 2 * nodes, 2 * nodes, -1);
  std::fill_n(mask, nodes * width, false);
  for (std::size_t node = 0; node < nodes; ++node) {
    first[nodes + node] = node % width == 0 ? 0 : 1;
    mask[node * width] = true;
    mask[node * width + node % width] = true;
  }
}

extern "C" void agentspec_run_drafting_step(void* step) { static_cast<DraftingStep*>(step)->run(); }

}  // namespace agentspec
