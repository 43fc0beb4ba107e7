#include "global_index.h"

#include <algorithm>
#include <new>
#include <utility>

#include "errors.h"

namespace agentspec {
namespace {

// A part is merged with those after it once they have grown to one part in so many of it: a namespace then
// has few parts, and a token is sealed anew a few times only.
constexpr std::size_t kMergeRatio = 16;
// Eviction rewrites a part without its oldest outputs, at least this share of it.
constexpr std::size_t kEvictedShare = 4;
// The least that a sealed token takes; says what can never fit.
constexpr std::size_t kSealedBytesPerToken = 17;
// What the containers allocate beside the values, estimated.
constexpr std::size_t kPartOverhead = 256;
constexpr std::size_t kNamespaceOverhead = 256;

void require(bool holds, const std::string& what) {
  if (!holds) throw IntegrityError("global index: " + what);
}

std::size_t num_text_tokens(const GlobalPart& part) { return part.tokens().size(); }

// Where the output ends in its part's text, its kEnd included.
std::uint32_t end_of_output(const GlobalPart& part, std::size_t which) {
  const std::span<const OutputRecord> outputs = part.outputs();
  return which + 1 < outputs.size() ? outputs[which + 1].begin
                                    : static_cast<std::uint32_t>(num_text_tokens(part));
}

bool is_dead(const GlobalPart& part, std::uint32_t begin) {
  return std::any_of(part.dead.begin(), part.dead.end(),
                     [&](const auto& range) { return range.first <= begin && begin < range.second; });
}

std::size_t num_live_outputs(const GlobalPart& part) { return part.outputs().size() - part.dead.size(); }

}  // namespace

std::span<const OutputRecord> GlobalPart::outputs() const {
  return growing ? std::span<const OutputRecord>(growing->outputs) : segment->outputs();
}

std::span<const Token> GlobalPart::tokens() const {
  return growing ? std::span<const Token>(growing->automaton.text()) : segment->tokens();
}

GlobalIndex::GlobalIndex(const GlobalIndexConfig& config) : config_(config) {}

std::span<const GlobalPart> GlobalIndex::find(std::string_view name) const {
  const auto found = namespaces_.find(name);
  return found == namespaces_.end() ? std::span<const GlobalPart>{} : found->second.parts;
}

std::int64_t GlobalIndex::num_tokens(std::string_view name) const {
  const auto found = namespaces_.find(name);
  return found == namespaces_.end() ? 0 : found->second.num_tokens;
}

void GlobalIndex::update_bytes(GlobalPart& part) {
  bytes_ -= part.bytes;
  part.bytes = kPartOverhead;
  if (part.growing) {
    part.bytes += part.growing->automaton.bytes() + part.growing->outputs.capacity() * sizeof(OutputRecord);
  } else {
    part.bytes += part.segment->bytes();
  }
  bytes_ += part.bytes;
}

bool GlobalIndex::is_closed(const GlobalPart& part) const {
  return part.segment || part.is_frozen || num_text_tokens(part) >= config_.max_growing_tokens;
}

GlobalPart& GlobalIndex::growing_part(Namespace& space) {
  if (space.parts.empty() || is_closed(space.parts.back())) {
    GlobalPart part;
    part.growing = std::make_shared<GlobalPart::Growing>(config_.max_counted_length);
    part.id = next_part_++;
    part.age = next_age_++;
    part.end = space.num_tokens;
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
  auto found = namespaces_.find(name);
  if (found == namespaces_.end()) {
    found = namespaces_.emplace(std::string(name), Namespace{}).first;
    bytes_ += kNamespaceOverhead + name.size();
  }
  GlobalPart& part = growing_part(found->second);
  part.growing->outputs.push_back(
      {output.id, static_cast<std::uint32_t>(num_text_tokens(part)), output.prompt_tail, output.time});
  target_ = &found->second;
  num_added_ = 0;
  return true;
}

bool GlobalIndex::add_slice(const Output& output, std::size_t max_tokens) {
  if (target_ == nullptr) return true;  // its namespace was erased meanwhile
  GlobalPart& part = target_->parts.back();
  SuffixAutomaton& automaton = part.growing->automaton;
  const std::size_t end = std::min(output.tokens.size(), num_added_ + max_tokens);
  automaton.append(std::span(output.tokens).subspan(num_added_, end - num_added_));
  target_->num_tokens += static_cast<std::int64_t>(end - num_added_);
  num_added_ = end;
  const bool is_complete = num_added_ == output.tokens.size();
  if (is_complete) {
    automaton.append(kEnd);
    ++target_->num_tokens;
  }
  const std::int64_t num_tokens_now = target_->num_tokens;
  if (is_complete) target_ = nullptr;
  part.end = num_tokens_now;
  update_bytes(part);
  return is_complete;
}

void GlobalIndex::give_up_adding(const Output& output) {
  if (target_ == nullptr) return;
  Namespace& space = *std::exchange(target_, nullptr);
  try {
    (void)erase_output(output.id);
  } catch (const std::bad_alloc&) {
    // The index that was appended to is broken.
    evicted_outputs_ += space.parts.back().outputs().size() - 1;
    bytes_ -= space.parts.back().bytes;
    space.parts.pop_back();
  }
  ++evicted_outputs_;
}

void GlobalIndex::add_segment(std::string_view name, std::shared_ptr<const Segment> segment) {
  if (segment->outputs().empty()) return;
  auto found = namespaces_.find(name);
  if (found == namespaces_.end()) {
    found = namespaces_.emplace(std::string(name), Namespace{}).first;
    bytes_ += kNamespaceOverhead + name.size();
  }
  Namespace& space = found->second;
  GlobalPart part;
  part.id = next_part_++;
  part.segment = std::move(segment);
  GlobalPart& added = *space.parts.insert(space.parts.begin(), std::move(part));
  update_bytes(added);
}

std::vector<GlobalPart> GlobalIndex::take(Namespace& space, std::size_t first, std::size_t count) {
  const auto begin = space.parts.begin() + static_cast<std::ptrdiff_t>(first);
  const auto end = begin + static_cast<std::ptrdiff_t>(count);
  std::vector<GlobalPart> taken(std::make_move_iterator(begin), std::make_move_iterator(end));
  space.parts.erase(begin, end);
  for (const GlobalPart& part : taken) bytes_ -= part.bytes;
  return taken;
}

std::vector<GlobalPart> GlobalIndex::erase_namespace(std::string_view name) {
  const auto found = namespaces_.find(name);
  if (found == namespaces_.end()) return {};
  std::vector<GlobalPart> taken = take(found->second, 0, found->second.parts.size());
  if (target_ == &found->second) target_ = nullptr;
  namespaces_.erase(found);
  bytes_ -= kNamespaceOverhead + name.size();
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
  namespaces_.clear();
  bytes_ = 0;
  target_ = nullptr;
  return taken;
}

bool GlobalIndex::erase_output(std::uint64_t id) {
  bool was_there = false;
  // A file that was loaded twice has its outputs twice.
  for (auto& [name, space] : namespaces_) {
    for (GlobalPart& part : space.parts) {
      for (std::size_t i = 0; i < part.outputs().size();) {
        if (part.outputs()[i].id != id) {
          ++i;
        } else if (part.growing) {
          const bool is_partial =
              target_ == &space && &part == &space.parts.back() && i + 1 == part.outputs().size();
          erase_growing(part, i);
          if (is_partial) target_ = nullptr;
          was_there = true;
        } else {
          was_there = erase_sealed(part, i++) || was_there;
        }
      }
    }
  }
  return was_there;
}

// The index of a growing part is built again: it is small. A plan may be reading the old one.
void GlobalIndex::erase_growing(GlobalPart& part, std::size_t which) {
  auto rebuilt = std::make_shared<GlobalPart::Growing>(config_.max_counted_length);
  const std::span<const OutputRecord> outputs = part.outputs();
  const std::span<const Token> text = part.tokens();
  const std::uint32_t begin = outputs[which].begin;
  const std::uint32_t end = end_of_output(part, which);
  rebuilt->automaton.append(text.first(begin));
  rebuilt->automaton.append(text.subspan(end));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (i == which) continue;
    rebuilt->outputs.push_back(outputs[i]);
    if (i > which) rebuilt->outputs.back().begin -= end - begin;
  }
  part.growing = std::move(rebuilt);
  part.id = next_part_++;
  update_bytes(part);
}

bool GlobalIndex::erase_sealed(GlobalPart& part, std::size_t which) {
  const std::uint32_t begin = part.outputs()[which].begin;
  if (is_dead(part, begin)) return false;
  const std::pair range{begin, end_of_output(part, which)};
  part.dead.insert(std::upper_bound(part.dead.begin(), part.dead.end(), range), range);
  ++part.revision;
  return true;
}

std::optional<GlobalIndex::Plan> GlobalIndex::plan() {
  for (auto& [name, space] : namespaces_) {
    std::vector<GlobalPart>& parts = space.parts;
    std::size_t closed = parts.size();
    if (closed > 0 && (target_ == &space || !is_closed(parts.back()))) --closed;
    std::size_t first = 0;
    while (first < closed && !parts[first].growing && parts[first].dead.empty()) ++first;
    if (first == closed) continue;
    std::size_t merged = 0;
    for (std::size_t i = first; i < closed; ++i) merged += num_text_tokens(parts[i]);
    while (first > 0 && num_text_tokens(parts[first - 1]) < kMergeRatio * merged &&
           num_text_tokens(parts[first - 1]) + merged <= config_.max_segment_tokens) {
      merged += num_text_tokens(parts[--first]);
    }
    return make_plan(name, std::span(parts).subspan(first, closed - first));
  }
  return bytes_ > config_.budget_bytes ? plan_eviction() : std::nullopt;
}

GlobalIndex::Plan GlobalIndex::make_plan(std::string_view name, std::span<GlobalPart> inputs) {
  Plan plan{std::string(name), {inputs.begin(), inputs.end()}, 0};
  for (GlobalPart& part : inputs) part.is_frozen = true;
  return plan;
}

std::optional<GlobalIndex::Plan> GlobalIndex::plan_eviction() {
  const std::string* name = nullptr;
  GlobalPart* oldest = nullptr;
  for (auto& [space_name, space] : namespaces_) {
    for (GlobalPart& part : space.parts) {
      if (target_ == &space && &part == &space.parts.back()) continue;
      if (oldest != nullptr && part.age >= oldest->age) continue;
      oldest = &part;
      name = &space_name;
    }
  }
  if (oldest == nullptr) return std::nullopt;
  Plan plan = make_plan(*name, {oldest, 1});
  const std::span<const OutputRecord> outputs = oldest->outputs();
  const std::size_t num_tokens = num_text_tokens(*oldest);
  const std::size_t excess = (bytes_ - config_.budget_bytes) / (oldest->bytes / (num_tokens + 1) + 1);
  const std::size_t wanted = std::max(num_tokens / kEvictedShare, excess);
  while (plan.num_dropped < outputs.size()) {
    ++plan.num_dropped;
    const std::size_t dropped =
        plan.num_dropped < outputs.size() ? outputs[plan.num_dropped].begin : num_tokens;
    if (dropped >= wanted) break;
  }
  return plan;
}

std::optional<GlobalIndex::Plan> GlobalIndex::plan_merge_of_all(std::string_view name) {
  const auto found = namespaces_.find(name);
  if (found == namespaces_.end()) return std::nullopt;
  std::vector<GlobalPart>& parts = found->second.parts;
  if (parts.empty() || (parts.size() == 1 && !parts[0].growing && parts[0].dead.empty())) return std::nullopt;
  return make_plan(name, parts);
}

std::shared_ptr<const Segment> GlobalIndex::seal(const Plan& plan, const Segment::Identity& identity) {
  std::vector<Token> text;
  std::vector<OutputRecord> records;
  std::size_t num_tokens = 0;
  for (const GlobalPart& part : plan.inputs) num_tokens += part.tokens().size();
  text.reserve(num_tokens);
  std::size_t to_drop = plan.num_dropped;
  for (const GlobalPart& part : plan.inputs) {
    const std::span<const Token> tokens = part.tokens();
    const std::span<const OutputRecord> outputs = part.outputs();
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (to_drop > 0) {
        --to_drop;
        continue;
      }
      if (is_dead(part, outputs[i].begin)) continue;
      const std::size_t end = end_of_output(part, i);
      records.push_back(outputs[i]);
      records.back().begin = static_cast<std::uint32_t>(text.size());
      const std::span<const Token> output = tokens.subspan(outputs[i].begin, end - outputs[i].begin);
      text.insert(text.end(), output.begin(), output.end());
    }
  }
  if (records.empty()) return nullptr;
  return Segment::build(text, records, identity);
}

std::optional<std::size_t> GlobalIndex::find_inputs(const Plan& plan) {
  const std::span<const GlobalPart> parts = find(plan.name);
  const auto same = [](const GlobalPart& a, const GlobalPart& b) {
    return a.id == b.id && a.revision == b.revision && a.tokens().size() == b.tokens().size();
  };
  const auto found = std::search(parts.begin(), parts.end(), plan.inputs.begin(), plan.inputs.end(), same);
  if (found == parts.end()) return std::nullopt;
  return static_cast<std::size_t>(found - parts.begin());
}

std::vector<GlobalPart> GlobalIndex::publish(const Plan& plan, std::shared_ptr<const Segment> segment) {
  const std::optional<std::size_t> first = find_inputs(plan);
  const auto found = namespaces_.find(plan.name);
  if (!first || (target_ == &found->second && *first + plan.inputs.size() == found->second.parts.size())) {
    GlobalPart refused;
    refused.segment = std::move(segment);
    std::vector<GlobalPart> freed;
    freed.push_back(std::move(refused));
    return freed;
  }
  Namespace& space = found->second;
  std::vector<GlobalPart> replaced = take(space, *first, plan.inputs.size());
  for (std::size_t i = 0, left = plan.num_dropped; i < replaced.size() && left > 0; ++i) {
    for (const OutputRecord& output : replaced[i].outputs()) {
      if (left == 0) break;
      --left;
      if (!is_dead(replaced[i], output.begin)) ++evicted_outputs_;
    }
  }
  if (segment) {
    GlobalPart part;
    part.id = next_part_++;
    part.age = replaced.front().age;
    part.end = replaced.back().end;
    part.segment = std::move(segment);
    GlobalPart& added =
        *space.parts.insert(space.parts.begin() + static_cast<std::ptrdiff_t>(*first), std::move(part));
    update_bytes(added);
  } else if (space.parts.empty()) {
    bytes_ -= kNamespaceOverhead + found->first.size();
    namespaces_.erase(found);
  }
  return replaced;
}

std::vector<GlobalPart> GlobalIndex::give_up(const Plan& plan) {
  const std::optional<std::size_t> first = find_inputs(plan);
  if (!first) return {};
  Namespace& space = namespaces_.find(plan.name)->second;
  for (const GlobalPart& part : plan.inputs) evicted_outputs_ += num_live_outputs(part);
  return take(space, *first, plan.inputs.size());
}

GlobalIndexStats GlobalIndex::stats() const {
  GlobalIndexStats stats;
  stats.bytes = bytes_;
  stats.namespaces = namespaces_.size();
  stats.evicted_outputs = evicted_outputs_;
  for (const auto& [name, space] : namespaces_) {
    for (const GlobalPart& part : space.parts) {
      if (part.segment) ++stats.segments;
      const std::span<const OutputRecord> outputs = part.outputs();
      const bool is_partial = target_ == &space && &part == &space.parts.back();
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        if (is_dead(part, outputs[i].begin) || (is_partial && i + 1 == outputs.size())) continue;
        ++stats.outputs;
        stats.output_tokens += end_of_output(part, i) - outputs[i].begin - outputs[i].prompt_tail - 1;
      }
    }
  }
  return stats;
}

void GlobalIndex::check_integrity() const {
  std::size_t bytes = 0;
  for (const auto& [name, space] : namespaces_) {
    bytes += kNamespaceOverhead + name.size();
    for (std::size_t p = 0; p < space.parts.size(); ++p) {
      const GlobalPart& part = space.parts[p];
      bytes += part.bytes;
      require((part.growing == nullptr) != (part.segment == nullptr), "a part is not of one kind");
      require(p == 0 || space.parts[p - 1].end <= part.end, "parts are not in the order of their ends");
      if (part.growing) {
        part.growing->automaton.check_integrity();
      } else {
        part.segment->check_integrity();
      }
      const std::span<const OutputRecord> outputs = part.outputs();
      const std::span<const Token> tokens = part.tokens();
      require(outputs.empty() || outputs.front().begin == 0, "a part does not begin with an output");
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        const bool is_partial = target_ == &space && p + 1 == space.parts.size() && i + 1 == outputs.size();
        if (is_partial) continue;
        const std::size_t end = end_of_output(part, i);
        require(end > outputs[i].begin && tokens[end - 1] == kEnd, "an output is not ended");
      }
    }
  }
  require(bytes == bytes_, "its bytes do not add up");
}

}  // namespace agentspec
