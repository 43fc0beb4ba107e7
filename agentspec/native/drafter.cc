#include "drafter.h"

#include <algorithm>
#include <utility>

namespace agentspec {
namespace {

// Bounds are computed in another order than the sums they bound; this is far above what rounding can do.
constexpr double kSlack = 1e-9;

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

}  // namespace

void Match::advance(const SuffixAutomaton& automaton, Token token) {
  StateId target = automaton.next(state, token);
  while (target == kNoState && state != kInitialState) {
    state = automaton.link(state);
    length = automaton.length(state);
    target = automaton.next(state, token);
  }
  if (target == kNoState) return;
  state = target;
  ++length;
}

void Drafter::Patterns::start(std::span<SuffixAutomaton* const> automata, std::span<const Match> matches,
                              std::int32_t max_pattern) {
  automata_ = automata;
  ends_.assign(matches.begin(), matches.end());
  length_ = 0;
  for (Match& end : ends_) {
    end.length = std::min(end.length, max_pattern);
    length_ = std::max(length_, end.length);
  }
  gather();
}

void Drafter::Patterns::advance() {
  // The next length at which the places change: a state's strings end, or another automaton's match begins.
  std::int32_t next = 0;
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    const bool matches = ends_[i].length >= length_;
    next = std::max(next, matches ? automata_[i]->link_length(ends_[i].state) : ends_[i].length);
  }
  length_ = next;
  gather();
}

void Drafter::Patterns::gather() {
  places_.clear();
  if (length_ <= 0) return;
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    if (ends_[i].length < length_) continue;
    while (automata_[i]->link_length(ends_[i].state) >= length_)
      ends_[i].state = automata_[i]->link(ends_[i].state);
    places_.push_back({static_cast<std::int32_t>(i), ends_[i].state});
  }
}

Drafter::Drafter(const DraftLimits& limits) : limits_(limits) {}

std::int32_t Drafter::max_spec(std::int32_t pattern_length, std::int32_t max_nodes) const {
  const double limit = limits_.alpha * pattern_length;
  return limit >= max_nodes ? max_nodes : static_cast<std::int32_t>(limit);
}

const Draft& Drafter::draft(SuffixAutomaton& request, std::span<SuffixAutomaton* const> segments,
                            std::span<const Match> matches, std::int32_t max_nodes) {
  SuffixAutomaton* const own[] = {&request};
  const StateId tail = request.tail();
  const Match own_match[] = {{tail, request.length(tail)}};
  request_.start(own, own_match, limits_.max_pattern);
  global_.start(segments, matches, limits_.max_pattern);
  best_.source = Source::kRoot;
  best_.match_length = 0;
  best_.score = 0.0;
  best_.nodes.clear();

  // From long patterns to short ones, the request before the global index: a later tree wins only by a better
  // score. No estimate is above 1, so the size of a tree bounds its score, and sizes only fall from here.
  while (request_.length() > 0 || global_.length() > 0) {
    const bool own_turn = request_.length() >= global_.length();
    Patterns& patterns = own_turn ? request_ : global_;
    const std::int32_t size = max_spec(patterns.length(), max_nodes);
    if (size <= best_.score) break;
    grow(patterns, own_turn ? Source::kRequest : Source::kGlobal, size);
    patterns.advance();
  }
  return best_;
}

// Grows the tree of one pattern and makes it the best if its score is better.
void Drafter::grow(const Patterns& patterns, Source source, std::int32_t max_nodes) {
  current_.nodes.clear();
  heap_.clear();
  places_.assign(patterns.places().begin(), patterns.places().end());
  double score = 0.0;
  expand(patterns.automata(), 0, 1.0, 0, places_.size(), index(max_nodes));
  while (!heap_.empty()) {
    // Estimates never rise from one node to the next.
    const double room = max_nodes - static_cast<std::int32_t>(current_.nodes.size());
    if ((score + room * heap_.front().estimate) * (1.0 + kSlack) < best_.score) return;
    std::pop_heap(heap_.begin(), heap_.end(), DraftedLater{});
    const Candidate added = heap_.back();
    heap_.pop_back();
    current_.nodes.push_back({added.token, added.parent, added.estimate});
    score += added.estimate;
    const auto size = static_cast<std::int32_t>(current_.nodes.size());
    if (size == max_nodes) break;
    if (limits_.chain) heap_.clear();
    expand(patterns.automata(), size, added.estimate, added.first_place, added.num_places,
           index(max_nodes - size));
  }
  if (score <= best_.score) return;
  current_.score = score;
  current_.source = source;
  current_.match_length = patterns.length();
  std::swap(best_, current_);
}

// Makes candidates of a node's children, of the best `room` of them at most: no more can be drafted.
void Drafter::expand(std::span<SuffixAutomaton* const> automata, std::int32_t node, double estimate,
                     std::size_t first, std::size_t count, std::size_t room) {
  std::int64_t total = 0;
  for (std::size_t i = first; i < first + count; ++i) {
    total += automata[index(places_[i].automaton)]->continuations(places_[i].state);
  }
  if (total == 0) return;
  // What a child's count must be for its estimate to reach min_token_prob, rounded down.
  const double needed = limits_.min_token_prob * static_cast<double>(total) / estimate * (1.0 - kSlack);
  children_.clear();

  if (count == 1) {
    const std::int32_t which = places_[first].automaton;
    SuffixAutomaton& automaton = *automata[index(which)];
    std::int64_t left = total;
    automaton.visit_likely_edges(places_[first].state, needed, [&](Token token, StateId target) {
      const std::int32_t occurrences = automaton.count(target);
      left -= occurrences;
      if (occurrences >= needed) {
        const double share = estimate * (static_cast<double>(occurrences) / static_cast<double>(total));
        const std::int64_t recency = (static_cast<std::int64_t>(which) << 32) | automaton.last_end(target);
        children_.push_back({share, recency, node, token, static_cast<std::uint32_t>(places_.size()), 1});
        places_.push_back({which, target});
      }
      return left > 0 && static_cast<double>(left) >= needed;
    });
  } else {
    // A child with a certain share of all occurrences has that share of the occurrences in one place at
    // least.
    tokens_.clear();
    for (std::size_t i = first; i < first + count; ++i) {
      SuffixAutomaton& automaton = *automata[index(places_[i].automaton)];
      std::int64_t left = automaton.continuations(places_[i].state);
      if (left == 0) continue;
      const double needed_here =
          needed * (static_cast<double>(left) / static_cast<double>(total)) * (1.0 - kSlack);
      automaton.visit_likely_edges(places_[i].state, needed_here, [&](Token token, StateId target) {
        const std::int32_t occurrences = automaton.count(target);
        left -= occurrences;
        if (occurrences >= needed_here) tokens_.push_back(token);
        return left > 0 && static_cast<double>(left) >= needed_here;
      });
    }
    std::sort(tokens_.begin(), tokens_.end());
    tokens_.erase(std::unique(tokens_.begin(), tokens_.end()), tokens_.end());
    for (const Token token : tokens_) {
      Candidate child{0.0, 0, node, token, static_cast<std::uint32_t>(places_.size()), 0};
      std::int64_t occurrences = 0;
      for (std::size_t i = first; i < first + count; ++i) {
        const Place place = places_[i];
        const SuffixAutomaton& automaton = *automata[index(place.automaton)];
        const StateId target = automaton.next(place.state, token);
        if (target == kNoState) continue;
        occurrences += automaton.count(target);
        // Places are in the order of the automata, oldest first.
        child.recency = (static_cast<std::int64_t>(place.automaton) << 32) | automaton.last_end(target);
        places_.push_back({place.automaton, target});
        ++child.num_places;
      }
      child.estimate = estimate * (static_cast<double>(occurrences) / static_cast<double>(total));
      children_.push_back(child);
    }
  }

  std::erase_if(children_, [&](const Candidate& child) { return child.estimate < limits_.min_token_prob; });
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
