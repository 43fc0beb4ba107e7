#include "index/global_index.h"

#include <algorithm>
#include <new>
#include <tuple>
#include <utility>

#include "errors.h"

namespace agentspec {
namespace {

// The least memory that a sealed token takes. It decides which outputs can never fit.
constexpr std::size_t kSealedBytesPerToken = 17;
// An estimate of what the containers allocate besides the values.
constexpr std::size_t kPartOverhead = 256;
constexpr std::size_t kNamespaceOverhead = 384;

void require(bool holds, const std::string& what) {
  if (!holds) throw IntegrityError("global index: " + what);
}

}  // namespace

std::span<const OutputRecord> GlobalPart::outputs() const {
  return growing ? std::span<const OutputRecord>(growing->outputs) : segment->outputs();
}

std::span<const Token> GlobalPart::tokens() const {
  return growing ? std::span<const Token>(growing->automaton.text()) : segment->tokens();
}

TextRange GlobalPart::range_of(std::size_t which) const {
  const std::span<const OutputRecord> all = outputs();
  const auto end = which + 1 < all.size() ? all[which + 1].begin : static_cast<std::uint32_t>(num_tokens());
  return {all[which].begin, end};
}

bool GlobalPart::is_dead(std::size_t which) const {
  return !dead.empty() && std::binary_search(dead.begin(), dead.end(), range_of(which));
}

std::uint64_t GlobalPart::age_of(std::size_t which) const {
  if (growing) return growing->ages[which];
  return segment_ages ? (*segment_ages)[which] : 0;
}

std::size_t GlobalPart::oldest() const {
  std::size_t which = 0;
  while (which < outputs().size() && is_dead(which)) ++which;
  return which;
}

// An earlier call may have thrown after it added the age.
void GlobalPart::Growing::add(const OutputRecord& output, std::uint64_t age) {
  ages.resize(outputs.size());
  ages.push_back(age);
  outputs.push_back(output);
}

GlobalIndex::GlobalIndex(const GlobalIndexConfig& config) : config_(config) {}

bool GlobalIndex::IsOlder::operator()(const Place& a, const Place& b) const {
  return std::tie(a.age, a.time, a.space->name) < std::tie(b.age, b.time, b.space->name);
}

std::span<const GlobalPart> GlobalIndex::find(std::string_view name) const {
  const auto found = namespaces_.find(name);
  return found == namespaces_.end() ? std::span<const GlobalPart>{} : found->second.parts;
}

// Returns the namespace, and creates it if needed.
GlobalIndex::Namespace& GlobalIndex::open_space(std::string_view name) {
  const auto found = namespaces_.find(name);
  if (found != namespaces_.end()) return found->second;
  for (auto& list : work_) {
    if (list.capacity() <= namespaces_.size()) list.reserve(2 * namespaces_.size() + 8);
  }
  Namespace made;
  Order single;
  made.name = name;
  single.insert({0, 0, &made});
  made.place = single.extract(single.begin());
  const auto added = namespaces_.emplace(std::string(name), std::move(made)).first;
  added->second.name = added->first;
  bytes_ += kNamespaceOverhead + name.size();
  return added->second;
}

// The namespace's parts must be gone already.
void GlobalIndex::remove_space(Namespace& space) {
  for (const Work work : {Work::kSeal, Work::kRewrite}) unmark(space, work);
  update_place(space);
  if (target_ == &space) target_ = nullptr;
  bytes_ -= kNamespaceOverhead + space.name.size();
  namespaces_.erase(namespaces_.find(space.name));
}

// Must be called whenever the oldest output of the namespace may have changed.
void GlobalIndex::update_place(Namespace& space) {
  if (space.place.empty()) space.place = order_.extract(space.position);
  if (space.parts.empty()) return;
  const GlobalPart& first = space.parts.front();
  const std::size_t oldest = first.oldest();
  const std::uint64_t age = first.age_of(oldest);
  space.place.value() = {age, age == 0 ? first.outputs()[oldest].time : 0, &space};
  space.position = order_.insert(std::move(space.place)).position;
}

void GlobalIndex::mark(Namespace& space, Work work) {
  const auto index = static_cast<std::size_t>(work);
  if (!std::exchange(space.may_need[index], true)) work_[index].push_back(&space);
}

GlobalIndex::Namespace* GlobalIndex::marked(Work work) {
  const auto& list = work_[static_cast<std::size_t>(work)];
  return list.empty() ? nullptr : list.back();
}

void GlobalIndex::unmark(Namespace& space, Work work) {
  const auto index = static_cast<std::size_t>(work);
  if (!std::exchange(space.may_need[index], false)) return;
  auto& list = work_[index];
  std::swap(*std::find(list.rbegin(), list.rend(), &space), list.back());
  list.pop_back();
}

void GlobalIndex::update_bytes(GlobalPart& part) {
  bytes_ -= part.bytes;
  part.bytes = kPartOverhead;
  if (part.growing) {
    part.bytes += part.growing->automaton.bytes() + part.growing->outputs.capacity() * sizeof(OutputRecord) +
                  part.growing->ages.capacity() * sizeof(std::uint64_t);
  } else {
    part.bytes += part.segment->bytes();
    if (part.segment_ages) part.bytes += part.segment_ages->capacity() * sizeof(std::uint64_t);
  }
  bytes_ += part.bytes;
}

bool GlobalIndex::is_closed(const GlobalPart& part) const {
  return part.segment || part.is_frozen || part.num_tokens() >= config_.max_growing_tokens;
}

// Whether this is the output that is being added.
bool GlobalIndex::is_partial(const Namespace& space, const GlobalPart& part, std::size_t which) const {
  return target_ == &space && &part == &space.parts.back() && which + 1 == part.outputs().size();
}

// The part that the next output is appended to. If it has no outputs yet, it has room for the first one, so
// that no part stays empty.
GlobalPart& GlobalIndex::growing_part(Namespace& space) {
  if (space.parts.empty() || is_closed(space.parts.back())) {
    GlobalPart part;
    part.growing = std::make_shared<GlobalPart::Growing>(config_.max_counted_length);
    part.growing->outputs.reserve(1);
    part.growing->ages.reserve(1);
    part.id = next_part_++;
    space.parts.push_back(std::move(part));
    update_bytes(space.parts.back());
  }
  return space.parts.back();
}

bool GlobalIndex::begin(std::string_view name, const Output& output) {
  if (output.tokens.size() <= output.prompt_tail) return false;
  if (kNamespaceOverhead + name.size() + kPartOverhead + output.tokens.size() * kSealedBytesPerToken >
      config_.budget_bytes) {
    ++evicted_outputs_;
    return false;
  }
  Namespace& space = open_space(name);
  GlobalPart& part = growing_part(space);
  part.growing->add(
      {output.id, static_cast<std::uint32_t>(part.num_tokens()), output.prompt_tail, output.time}, next_age_);
  if (part.outputs().size() == 1) update_place(space);
  ++next_age_;
  target_ = &space;
  num_added_ = 0;
  return true;
}

bool GlobalIndex::add_slice(const Output& output, std::size_t max_tokens) {
  if (target_ == nullptr) return true;  // the namespace was erased meanwhile
  GlobalPart& part = target_->parts.back();
  SuffixAutomaton& automaton = part.growing->automaton;
  const std::size_t end = std::min(output.tokens.size(), num_added_ + max_tokens);
  automaton.append(std::span(output.tokens).subspan(num_added_, end - num_added_));
  num_added_ = end;
  const bool is_complete = num_added_ == output.tokens.size();
  if (is_complete) {
    automaton.append(kEnd);
    mark(*std::exchange(target_, nullptr), Work::kSeal);
  }
  update_bytes(part);
  return is_complete;
}

void GlobalIndex::give_up_adding() {
  if (target_ == nullptr) return;
  Namespace& space = *std::exchange(target_, nullptr);
  const OutputRecord* const added = &space.parts.back().growing->outputs.back();
  ++evicted_outputs_;
  try {
    Erasure erasure;
    plan_erasure(space, [&](const OutputRecord& record) { return &record == added; }, erasure);
    erase(erasure);
  } catch (const std::bad_alloc&) {
    // The index that was being extended is broken.
    evicted_outputs_ += space.parts.back().outputs().size() - 1;
    bytes_ -= space.parts.back().bytes;
    space.parts.pop_back();
    update_place(space);
    if (space.parts.empty()) remove_space(space);
  }
}

void GlobalIndex::add_segments(std::string_view name, std::vector<DeadSegment> segments) {
  std::erase_if(segments, [](const DeadSegment& added) {
    return added.dead.size() == added.segment->outputs().size();
  });
  if (segments.empty()) return;
  Namespace& space = open_space(name);
  std::vector<GlobalPart> parts;
  try {
    parts.reserve(segments.size() + space.parts.size());
  } catch (const std::bad_alloc&) {
    if (space.parts.empty() && target_ != &space) remove_space(space);
    throw;
  }
  for (DeadSegment& added : segments) {
    GlobalPart& part = parts.emplace_back();
    part.id = next_part_++;
    part.segment = std::move(added.segment);
    part.dead = std::move(added.dead);
    if (!part.dead.empty()) mark(space, Work::kRewrite);
    update_bytes(part);
  }
  std::move(space.parts.begin(), space.parts.end(), std::back_inserter(parts));
  space.parts.swap(parts);
  update_place(space);
}

std::vector<GlobalPart> GlobalIndex::take(Namespace& space, std::size_t first, std::size_t count) {
  const auto begin = space.parts.begin() + static_cast<std::ptrdiff_t>(first);
  const auto end = begin + static_cast<std::ptrdiff_t>(count);
  std::vector<GlobalPart> taken(std::make_move_iterator(begin), std::make_move_iterator(end));
  space.parts.erase(begin, end);
  for (const GlobalPart& part : taken) bytes_ -= part.bytes;
  update_place(space);
  return taken;
}

std::vector<GlobalPart> GlobalIndex::erase_namespace(std::string_view name) {
  const auto found = namespaces_.find(name);
  if (found == namespaces_.end()) return {};
  std::vector<GlobalPart> taken = take(found->second, 0, found->second.parts.size());
  remove_space(found->second);
  return taken;
}

std::vector<GlobalPart> GlobalIndex::clear() {
  std::size_t num_parts = 0;
  for (const auto& [name, space] : namespaces_) num_parts += space.parts.size();
  std::vector<GlobalPart> taken;
  taken.reserve(num_parts);
  for (auto& [name, space] : namespaces_) {
    for (GlobalPart& part : space.parts) taken.push_back(std::move(part));
  }
  for (auto& list : work_) list.clear();
  order_.clear();
  namespaces_.clear();
  bytes_ = 0;
  target_ = nullptr;
  return taken;
}

GlobalSnapshot GlobalIndex::snapshot(std::string_view name) const {
  GlobalSnapshot result;
  const auto found = namespaces_.find(name);
  if (found == namespaces_.end()) return result;
  const Namespace& space = found->second;
  for (const GlobalPart& part : space.parts) {
    if (part.segment && part.dead.empty()) {
      result.segments.push_back(part.segment);
      continue;
    }
    result.is_rewriting = result.is_rewriting || part.segment;
    const std::span<const OutputRecord> outputs = part.outputs();
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!part.is_dead(i) && !is_partial(space, part, i)) result.unsealed.push_back(outputs[i].id);
    }
  }
  return result;
}

std::pair<std::size_t, std::size_t> GlobalIndex::count_outputs(const Namespace& space) const {
  std::pair<std::size_t, std::size_t> counts;
  for (const GlobalPart& part : space.parts) {
    const std::span<const OutputRecord> outputs = part.outputs();
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (part.is_dead(i) || is_partial(space, part, i)) continue;
      const auto [begin, end] = part.range_of(i);
      ++counts.first;
      counts.second += end - begin - outputs[i].prompt_tail - 1;
    }
  }
  return counts;
}

std::vector<NamespaceStats> GlobalIndex::namespaces() const {
  std::vector<NamespaceStats> result;
  result.reserve(namespaces_.size());
  for (const auto& [name, space] : namespaces_) {
    const auto [outputs, tokens] = count_outputs(space);
    std::size_t bytes = kNamespaceOverhead + name.size();
    for (const GlobalPart& part : space.parts) bytes += part.bytes;
    result.push_back({name, outputs, tokens, bytes});
  }
  return result;
}

GlobalIndexStats GlobalIndex::stats() const {
  GlobalIndexStats stats;
  stats.bytes = bytes_;
  stats.namespaces = namespaces_.size();
  stats.evicted_outputs = evicted_outputs_;
  for (const auto& [name, space] : namespaces_) {
    const auto [outputs, tokens] = count_outputs(space);
    stats.outputs += outputs;
    stats.output_tokens += tokens;
    for (const GlobalPart& part : space.parts) stats.segments += part.segment ? 1 : 0;
  }
  return stats;
}

void GlobalIndex::check_integrity() const {
  std::size_t bytes = 0;
  std::size_t num_ordered = 0;
  for (const auto& [name, space] : namespaces_) {
    bytes += kNamespaceOverhead + name.size();
    require(space.name == name, "a namespace has another's name");
    num_ordered += space.parts.empty() ? 0 : 1;
    require(space.parts.empty() ||
                (space.position->space == &space &&
                 space.position->age == space.parts.front().age_of(space.parts.front().oldest())),
            "a namespace is not where its oldest output is in the order");
    bool needs_rewrite = false;
    std::uint64_t latest = 0;
    for (std::size_t p = 0; p < space.parts.size(); ++p) {
      const GlobalPart& part = space.parts[p];
      bytes += part.bytes;
      require((part.growing == nullptr) != (part.segment == nullptr), "a part is not of one kind");
      require(p == 0 || space.parts[p - 1].segment || part.growing, "a segment follows a growing part");
      if (part.growing) {
        part.growing->automaton.check_integrity();
        require(part.dead.empty(), "a growing part has deleted outputs");
      } else {
        part.segment->check_integrity();
        require(part.dead.size() < part.outputs().size(), "all outputs of a segment are deleted");
      }
      needs_rewrite = needs_rewrite || !part.dead.empty();
      const std::span<const OutputRecord> outputs = part.outputs();
      const std::span<const Token> tokens = part.tokens();
      require(outputs.empty() || outputs.front().begin == 0, "a part does not begin with an output");
      std::size_t num_dead = 0;
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        num_dead += part.is_dead(i) ? 1 : 0;
        require(latest <= part.age_of(i), "outputs are not in the order of their ages");
        latest = part.age_of(i);
        if (is_partial(space, part, i)) continue;
        const auto [begin, end] = part.range_of(i);
        require(end > begin && tokens[end - 1] == kEnd, "an output is not ended");
      }
      require(num_dead == part.dead.size(), "what is deleted are no outputs");
    }
    require(!needs_rewrite || space.may_need[static_cast<std::size_t>(Work::kRewrite)],
            "nobody will rewrite a segment that has deleted outputs");
  }
  require(num_ordered == order_.size(), "not all namespaces are in the order");
  require(bytes == bytes_, "its bytes do not add up");
}

}  // namespace agentspec
