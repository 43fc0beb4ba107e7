// Deleting outputs. Everything that needs memory is done first, so a deletion is complete or does not happen
// at all.

#include <utility>

#include "index/global_index.h"

namespace agentspec {

GlobalIndex::Erasure GlobalIndex::plan_erasure(const std::string* name, const IsErased& is_erased) {
  Erasure erasure;
  if (name == nullptr) {
    // The same output can be in several namespaces, for example after a file was loaded twice.
    for (auto& [space_name, space] : namespaces_) plan_erasure(space, is_erased, erasure);
  } else if (const auto found = namespaces_.find(*name); found != namespaces_.end()) {
    plan_erasure(found->second, is_erased, erasure);
  }
  return erasure;
}

void GlobalIndex::plan_erasure(Namespace& space, const IsErased& is_erased, Erasure& erasure) {
  const std::size_t first_change = erasure.changes_.size();
  for (std::size_t p = space.parts.size(); p-- > 0;) {
    const GlobalPart& part = space.parts[p];
    const std::span<const OutputRecord> outputs = part.outputs();
    std::vector<bool> erased;
    std::size_t num_erased = 0;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!is_erased(outputs[i]) || part.is_dead(i)) continue;
      erased.resize(outputs.size());
      erased[i] = true;
      ++num_erased;
    }
    if (num_erased == 0) continue;
    Erasure::Change& change = erasure.changes_.emplace_back();
    change.space = &space;
    change.part = p;
    change.is_whole = num_erased + part.dead.size() == outputs.size();
    change.is_partial_erased = erased.back() && is_partial(space, part, outputs.size() - 1);
    if (change.is_whole) {
      // The whole part is removed.
    } else if (part.growing) {
      change.rebuilt = rebuild_growing(part, erased);
    } else {
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        if (erased[i] || part.is_dead(i)) change.dead.push_back(part.range_of(i));
      }
    }
    erasure.num_outputs_ += num_erased - (change.is_partial_erased ? 1 : 0);
    erasure.has_partial_ = erasure.has_partial_ || change.is_partial_erased;
  }
  if (erasure.changes_.size() == first_change) return;
  erasure.names_.emplace_back(space.name);
  erasure.freed_.reserve(erasure.changes_.size());
}

// Indexes a growing part again, which is cheap because it is small. A plan may be reading the old index.
std::shared_ptr<GlobalPart::Growing> GlobalIndex::rebuild_growing(const GlobalPart& part,
                                                                  const std::vector<bool>& is_erased) const {
  auto rebuilt = std::make_shared<GlobalPart::Growing>(config_.max_counted_length);
  const std::span<const OutputRecord> outputs = part.outputs();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (is_erased[i]) continue;
    const auto [begin, end] = part.range_of(i);
    rebuilt->add(outputs[i], part.age_of(i));
    rebuilt->outputs.back().begin = static_cast<std::uint32_t>(rebuilt->automaton.text().size());
    rebuilt->automaton.append(part.tokens().subspan(begin, end - begin));
  }
  return rebuilt;
}

void GlobalIndex::erase(Erasure& erasure) {
  Namespace* last = nullptr;
  const auto finish = [&](Namespace* space) {
    if (space == nullptr) return;
    update_place(*space);
    if (space->parts.empty()) remove_space(*space);
  };
  for (Erasure::Change& change : erasure.changes_) {
    Namespace& space = *change.space;
    if (last != &space) finish(std::exchange(last, &space));
    GlobalPart& part = space.parts[change.part];
    if (change.is_partial_erased) target_ = nullptr;
    if (change.is_whole) {
      bytes_ -= part.bytes;
      erasure.freed_.push_back(std::move(part));
      space.parts.erase(space.parts.begin() + static_cast<std::ptrdiff_t>(change.part));
    } else if (part.growing) {
      part.growing.swap(change.rebuilt);
      part.id = next_part_++;
      update_bytes(part);
    } else {
      part.dead.swap(change.dead);
      mark(space, Work::kRewrite);
    }
  }
  finish(last);
}

}  // namespace agentspec
