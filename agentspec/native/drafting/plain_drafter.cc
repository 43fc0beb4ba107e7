#include "drafting/plain_drafter.h"

#include <algorithm>
#include <utility>

namespace agentspec {
namespace {

// Bounds are added up in another order than the sums that they bound. This is far more than rounding can
// change.
constexpr double kSlack = 1e-9;
// Number of ranks of a larger interval that are read, at regular distances, to find continuations. A
// continuation that occurs less than once in a few hundred times may be missed. The counts of those found are
// exact.
constexpr std::uint32_t kMaxRanks = 4096;

// True if `a` is drafted after `b`: a smaller estimate, then an older last occurrence, then a later parent.
struct DraftedLater {
  template <typename Candidate>
  bool operator()(const Candidate& a, const Candidate& b) const {
    if (a.estimate != b.estimate) return a.estimate < b.estimate;
    if (a.recency != b.recency) return a.recency < b.recency;
    return a.parent > b.parent;
  }
};

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

Cursor interval_place(std::uint16_t part, const Interval& interval) {
  return {Cursor::Kind::kInterval, 0, part, 0, static_cast<std::int32_t>(interval.begin), interval.size()};
}

std::int64_t num_occurrences(const IndexPart& part, const Cursor& place) {
  return place.kind == Cursor::Kind::kState ? part.automaton->continuations(place.first) : place.count;
}

// The end of the last occurrence in the part, as a number of tokens of its text.
std::int64_t last_occurrence(const IndexPart& part, const Cursor& place) {
  if (place.kind == Cursor::Kind::kState) return part.automaton->last_end(place.first);
  std::uint32_t last = 0;
  for (std::uint32_t i = 0; i < std::min(place.count, kMaxRanks); ++i) {
    last = std::max(last, part.segment->position(static_cast<std::uint32_t>(place.first) + i));
  }
  return last;
}

}  // namespace

void PlainDrafter::Patterns::start(std::span<const PartMatch> parts, std::int32_t max_pattern) {
  parts_ = parts;
  walks_.clear();
  length_ = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    walks_.emplace_back(static_cast<std::uint16_t>(i), parts[i], max_pattern);
    length_ = std::max(length_, walks_.back().length);
  }
  gather();
}

void PlainDrafter::Patterns::advance() {
  std::int32_t next = 0;
  for (const Walk& walk : walks_) next = std::max(next, walk.next_change(length_));
  length_ = next;
  gather();
}

void PlainDrafter::Patterns::gather() {
  places_.clear();
  if (length_ <= 0) return;
  for (Walk& walk : walks_) {
    const IndexPart& part = parts_[walk.part].part;
    walk.shorten(part, length_);
    if (!walk.occurs(length_)) continue;
    if (part.automaton) {
      places_.push_back({Cursor::Kind::kState, 0, walk.part, 0, walk.state, 0});
    } else {
      places_.push_back(interval_place(walk.part, walk.interval));
    }
  }
}

PlainDrafter::PlainDrafter(const DraftLimits& limits) : limits_(limits) {}

std::int32_t PlainDrafter::max_spec(std::int32_t pattern_length, std::int32_t max_nodes) const {
  const double limit = limits_.alpha * pattern_length;
  return limit >= max_nodes ? max_nodes : static_cast<std::int32_t>(limit);
}

const Draft& PlainDrafter::draft(const DraftSources& sources, std::int32_t max_nodes) {
  PartMatch own;
  own.part.automaton = sources.request;
  if (limits_.own_text) own.state = {sources.request->tail(), sources.request->tail_length()};
  request_.start({&own, 1}, limits_.max_pattern);
  global_.start(sources.global, limits_.max_pattern);
  const bool has_match = request_.length() > 0 || global_.length() > 0;
  best_.match_length = 0;
  best_.score = 0.0;
  best_.nodes.clear();

  // Goes from long patterns to short ones, the request before the global index, so a later tree wins only
  // with a better score. No estimate is above 1, so a tree's size bounds its score, and the sizes only fall
  // from here.
  while (request_.length() > 0 || global_.length() > 0) {
    const bool own_turn = request_.length() >= global_.length();
    Patterns& patterns = own_turn ? request_ : global_;
    const std::int32_t size = max_spec(patterns.length(), max_nodes);
    if (size <= best_.score) break;
    grow(patterns, own_turn ? Source::kRequest : Source::kGlobal, size);
    patterns.advance();
  }
  best_.has_match = has_match;
  return best_;
}

// Grows the tree of one pattern, and keeps it if its score is the best so far.
void PlainDrafter::grow(const Patterns& patterns, Source source, std::int32_t max_nodes) {
  current_.nodes.clear();
  heap_.clear();
  places_.assign(patterns.places().begin(), patterns.places().end());
  double score = 0.0;
  const Candidate root{1.0, 0, -1, patterns.length(), 0, 0, static_cast<std::uint32_t>(places_.size())};
  expand(patterns.parts(), root, 0, index(max_nodes));
  while (!heap_.empty()) {
    // Estimates do not rise from one node to the next.
    const double room = max_nodes - static_cast<std::int32_t>(current_.nodes.size());
    if ((score + room * heap_.front().estimate) * (1.0 + kSlack) < best_.score) return;
    std::pop_heap(heap_.begin(), heap_.end(), DraftedLater{});
    const Candidate added = heap_.back();
    heap_.pop_back();
    current_.nodes.push_back({added.token, added.parent, added.estimate, source, {}});
    score += added.estimate;
    const auto size = static_cast<std::int32_t>(current_.nodes.size());
    if (size == max_nodes) break;
    if (limits_.chain) heap_.clear();
    expand(patterns.parts(), added, size, index(max_nodes - size));
  }
  if (score <= best_.score) return;
  current_.score = score;
  current_.match_length = patterns.length();
  std::swap(best_, current_);
}

// Adds the tokens that follow the occurrences at `place` to tokens_.
void PlainDrafter::find_tokens(const IndexPart& part, const Cursor& place) {
  if (place.kind == Cursor::Kind::kState) {
    part.automaton->visit_edges(place.first, [&](Token token, StateId) { tokens_.push_back(token); });
    return;
  }
  const std::uint32_t ranks = std::min(place.count, kMaxRanks);
  for (std::uint32_t i = 0; i < ranks; ++i) {
    const std::uint32_t rank = Samples(place.interval(), ranks)[i];
    if (part.is_live(part.segment->position(rank))) tokens_.push_back(part.segment->next(rank));
  }
}

// Makes candidates of the best children of a node, at most `room` of them, because no more can be drafted.
void PlainDrafter::expand(std::span<const PartMatch> parts, const Candidate& node, std::int32_t number,
                          std::size_t room) {
  std::int64_t total = 0;
  tokens_.clear();
  for (std::uint32_t i = 0; i < node.num_places; ++i) {
    const Cursor place = places_[node.first_place + i];
    const IndexPart& part = parts[place.part].part;
    if (place.kind == Cursor::Kind::kInterval && node.length >= Segment::kDepth) continue;
    total += num_occurrences(part, place);
    find_tokens(part, place);
  }
  if (total == 0) return;
  std::sort(tokens_.begin(), tokens_.end());
  tokens_.erase(std::unique(tokens_.begin(), tokens_.end()), tokens_.end());
  children_.clear();
  for (const Token token : tokens_) {
    if (token == kEnd) continue;
    Candidate child{0.0, 0, number, node.length + 1, token, static_cast<std::uint32_t>(places_.size()), 0};
    std::int64_t occurrences = 0;
    for (std::uint32_t i = 0; i < node.num_places; ++i) {
      Cursor place = places_[node.first_place + i];
      const IndexPart& part = parts[place.part].part;
      if (place.kind == Cursor::Kind::kState) {
        place.first = part.automaton->next(place.first, token);
        if (place.first == kNoState) continue;
        occurrences += part.automaton->count(place.first);
      } else {
        const Interval longer = part.segment->extend(place.interval(), token);
        if (longer.empty()) continue;
        place = interval_place(place.part, longer);
        occurrences += longer.size();
      }
      // Places are in the order of the parts, oldest first.
      child.recency = (static_cast<std::int64_t>(place.part) << 32) | last_occurrence(part, place);
      places_.push_back(place);
      ++child.num_places;
    }
    child.estimate = node.estimate * (static_cast<double>(occurrences) / static_cast<double>(total));
    if (child.estimate >= limits_.min_token_prob) children_.push_back(child);
  }
  if (limits_.chain) room = 1;
  if (children_.size() > room) {
    const auto end = children_.begin() + static_cast<std::ptrdiff_t>(room);
    std::nth_element(children_.begin(), end, children_.end(),
                     [](const Candidate& a, const Candidate& b) { return DraftedLater{}(b, a); });
    children_.erase(end, children_.end());
  }
  for (const Candidate& child : children_) {
    heap_.push_back(child);
    std::push_heap(heap_.begin(), heap_.end(), DraftedLater{});
  }
}

}  // namespace agentspec
