#include "drafting/drafter.h"

#include <algorithm>

namespace agentspec {
namespace {

// A shorter pattern is used in addition to a longer one if it occurs at least this many times as often.
constexpr std::int64_t kMoreOften = 3;
// The number of patterns that are tried for that.
constexpr int kMaxWalkSteps = 16;
// Intervals of at most this many ranks are followed position by position.
constexpr std::uint32_t kMaxPoints = 32;
// Number of ranks of a larger interval that are read, at regular distances, to find continuations (SSSD,
// section 3.1.2). The counts of the continuations that are found are exact.
constexpr std::uint32_t kNumSamples = 32;
// In an interval of at most this many ranks, continuations are counted by reading all of it. That takes less
// time than to search for them, because most of them are not drafted.
constexpr std::uint32_t kMaxScanned = 512;
// The number of samples in which a continuation should occur if its share is just large enough to be drafted.
constexpr double kSamplesPerShare = 2.0;
// A continuation is weighed if its share in at least one context is at least this fraction of the share that
// can still be drafted. Of these, at most kMaxWeighed with the largest shares are weighed.
constexpr float kWeighedShare = 0.5F;
constexpr std::size_t kMaxWeighed = 32;
static_assert(kMaxWeighed <= Segment::kMaxExtended);
// A node is not expanded if a continuation would have to be more probable than this to be drafted.
constexpr float kSurest = 0.9F;
constexpr std::int32_t kUnknownAge = INT32_MAX;
constexpr Interval kNotLookedUp{UINT32_MAX, UINT32_MAX};

// The distance as an age; too large distances are clamped.
std::int32_t age_of(std::int64_t tokens) {
  return static_cast<std::int32_t>(std::min<std::int64_t>(tokens, kUnknownAge - 1));
}

// The class of an age, given in tokens.
std::uint8_t age_class(std::int32_t age) {
  if (age < 128) return 3;
  if (age < 1024) return 2;
  return age < 8192 ? 1 : 0;
}

// How often the token occurs. Written so that compilers use vector instructions.
std::int32_t count_of(std::span<const Token> tokens, Token token) {
  std::int32_t count = 0;
  for (const Token other : tokens) count += other == token ? 1 : 0;
  return count;
}

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

// True if `a` is drafted after `b`: a smaller estimate, then an older occurrence, then a later parent.
struct DraftedLater {
  template <typename Candidate>
  bool operator()(const Candidate& a, const Candidate& b) const {
    if (a.estimate != b.estimate) return a.estimate < b.estimate;
    if (a.age != b.age) return a.age > b.age;
    return a.parent > b.parent;
  }
};

}  // namespace

Drafter::Drafter(const DraftLimits& limits) : limits_(limits) {}

// Chooses the root's contexts.
Drafter::Place Drafter::start(const DraftSources& sources) {
  estimator_ = sources.estimator;
  parts_.clear();
  cursors_.clear();
  points_.clear();
  intervals_.clear();
  match_length_ = 0;
  PartMatch own;
  own.part.automaton = sources.request;
  if (limits_.own_text) own.state = {sources.request->tail(), sources.request->tail_length()};
  parts_.push_back(own.part);
  for (const PartMatch& match : sources.global) parts_.push_back(match.part);
  const auto first_corpus = static_cast<std::uint16_t>(parts_.size());
  for (const PartMatch& match : sources.corpora) parts_.push_back(match.part);
  add_contexts({&own, 1}, 0, kRequestSlot, kGlobalSlot);
  add_contexts(sources.global, 1, kGlobalSlot, kCorpusSlot);
  add_contexts(sources.corpora, first_corpus, kCorpusSlot, kNumSlots);
  for (const Cursor& cursor : cursors_) match_length_ = std::max(match_length_, cursor.length);
  Place root{0, static_cast<std::uint32_t>(cursors_.size()), own.state};
  to_points(root, 0);
  return root;
}

// Chooses the contexts of one source at the root.
void Drafter::add_contexts(std::span<const PartMatch> matches, std::uint16_t first_part, int first_slot,
                           int end_slot) {
  walks_.clear();
  std::int32_t length = 0;
  for (std::size_t i = 0; i < matches.size(); ++i) {
    walks_.emplace_back(static_cast<std::uint16_t>(first_part + i), matches[i], limits_.max_pattern);
    length = std::max(length, walks_.back().length);
  }
  std::int64_t needed = 1;
  int slot = first_slot;
  for (int steps = 0; steps < kMaxWalkSteps && length > 0 && slot < end_slot; ++steps) {
    tier_.clear();
    std::int64_t occurrences = 0;
    for (const Walk& walk : walks_) {
      if (!walk.occurs(length)) continue;
      const IndexPart& part = parts_[walk.part];
      Cursor cursor{Cursor::Kind::kState, static_cast<std::uint8_t>(slot), walk.part, length, walk.state, 0};
      if (part.automaton != nullptr) {
        occurrences += part.automaton->continuations(walk.state);
      } else {
        occurrences += walk.interval.size();
        cursor.kind = Cursor::Kind::kInterval;
        cursor.first = static_cast<std::int32_t>(walk.interval.begin);
        cursor.count = walk.interval.size();
      }
      tier_.push_back(cursor);
    }
    if (occurrences >= needed) {
      for (const Cursor& cursor : tier_) cursors_.push_back(cursor);
      needed = kMoreOften * occurrences;
      ++slot;
    }
    std::int32_t next_length = 0;
    for (const Walk& walk : walks_) next_length = std::max(next_length, walk.next_change(length));
    for (Walk& walk : walks_) walk.shorten(parts_[walk.part], next_length);
    length = next_length;
  }
}

// Numbers the slots of the cursors in their order. `depth` is that of the children.
void Drafter::find_contexts(std::span<const Cursor> cursors, std::int32_t depth) {
  std::array<std::int32_t, kNumSlots> lengths;
  lengths.fill(INT32_MIN);
  for (const Cursor& cursor : cursors) lengths[cursor.slot] = cursor.length + depth - 1;
  num_contexts_ = 0;
  for (std::uint8_t slot = 0; slot < kNumSlots; ++slot) {
    if (lengths[slot] == INT32_MIN) continue;
    context_of_[slot] = static_cast<std::uint8_t>(num_contexts_);
    contexts_[num_contexts_++] = {slot, lengths[slot], 0, 0, kUnknownAge, 0};
  }
}

// Returns the child with this token and creates it if needed; null if there are too many children.
Drafter::Child* Drafter::child(Token token) {
  std::uint8_t& last = found_at_[static_cast<std::uint32_t>(token) % found_at_.size()];
  if (last < num_children_ && tokens_[last] == token) return &children_[last];
  for (std::size_t i = 0; i < num_children_; ++i) {
    if (tokens_[i] != token) continue;
    last = static_cast<std::uint8_t>(i);
    return &children_[i];
  }
  if (num_children_ == kMaxChildren) return nullptr;
  last = static_cast<std::uint8_t>(num_children_);
  tokens_[num_children_] = token;
  Child& made = children_[num_children_++];
  made.token = token;
  made.age = kUnknownAge;
  for (std::size_t i = 0; i < num_contexts_; ++i) made.evidence[i] = {0, 0, kUnknownAge};
  return &made;
}

void Drafter::count(std::size_t context, Token token, std::int32_t occurrences, std::int32_t age) {
  if (token == kEnd) return;
  Child* const found = child(token);
  if (found == nullptr) return;
  Child::Evidence& evidence = found->evidence[context];
  evidence.seen += occurrences;
  evidence.age = std::min(evidence.age, age);
  found->age = std::min(found->age, age);
}

void Drafter::meet(std::size_t context, Token token, std::int32_t occurrences) {
  if (token == kEnd) return;
  if (Child* const found = child(token); found != nullptr) found->evidence[context].met += occurrences;
}

// Keeps only the children that may be worth drafting.
void Drafter::keep_likely_children(float needed) {
  num_weighed_ = 0;
  for (std::size_t c = 0; c < num_children_; ++c) {
    Child& found = children_[c];
    found.share = 0.0F;
    for (std::size_t i = 0; i < num_contexts_; ++i) {
      const std::int32_t met = found.evidence[i].seen + found.evidence[i].met;
      if (met == 0) continue;
      found.share = std::max(found.share, static_cast<float>(met) / static_cast<float>(contexts_[i].read));
    }
    if (found.share >= needed) weighed_[num_weighed_++] = &found;
  }
  if (num_weighed_ > kMaxWeighed) {
    std::nth_element(weighed_.begin(), weighed_.begin() + kMaxWeighed,
                     weighed_.begin() + static_cast<std::ptrdiff_t>(num_weighed_),
                     [](const Child* a, const Child* b) {
                       return a->share != b->share ? a->share > b->share : a->token < b->token;
                     });
    num_weighed_ = kMaxWeighed;
  }
}

// Collects the continuations of a node's contexts. `depth` is that of the children, `path` is the node's
// estimate.
void Drafter::read_children(Place place, std::int32_t depth, double path) {
  num_children_ = 0;
  // A continuation that is too rare to be drafted need not be found.
  const double needed = limits_.min_token_prob / path;
  const auto num_samples = static_cast<std::uint32_t>(
      std::clamp(kSamplesPerShare / std::max(needed, 1e-3), 4.0, static_cast<double>(kNumSamples)));
  const std::span cursors(cursors_.data() + place.first_cursor, place.num_cursors);
  find_contexts(cursors, depth);
  // 1. Read each context's continuations, or a sample of them if there are many.
  std::uint32_t num_intervals = 0;
  for (const Cursor& cursor : cursors) {
    const IndexPart& part = parts_[cursor.part];
    const std::size_t number = context_of_[cursor.slot];
    Context& context = contexts_[number];
    if (cursor.kind == Cursor::Kind::kState) {
      const SuffixAutomaton& automaton = *part.automaton;
      const std::int64_t end = part.age_of_end + automaton.num_tokens();
      const std::int32_t continuations = automaton.continuations(cursor.first);
      context.total += continuations;
      context.read += continuations;
      if (automaton.has_many_edges(cursor.first)) {
        automaton.visit_frequent_edges(
            cursor.first, [&](Token token, StateId target) { meet(number, token, automaton.count(target)); });
      } else {
        automaton.visit_edges(cursor.first, [&](Token token, StateId target) {
          count(number, token, automaton.count(target), age_of(end - automaton.last_end(target)));
        });
      }
    } else if (cursor.kind == Cursor::Kind::kPoints) {
      const std::span<const Token> tokens = part.segment->tokens();
      const std::int64_t end = part.age_of_end + static_cast<std::int64_t>(tokens.size());
      context.total += static_cast<std::int32_t>(cursor.count);
      context.read += static_cast<std::int32_t>(cursor.count);
      // All are read before any is counted, so that the memory accesses overlap.
      const std::uint32_t* const points = &points_[index(cursor.first)];
      for (std::uint32_t i = 0; i < cursor.count; ++i) {
        met_[i] = tokens[points[i] + static_cast<std::uint32_t>(depth - 1)];
      }
      for (std::uint32_t i = 0, next = 0; i < cursor.count; i = next) {
        std::uint32_t last = points[i];
        for (next = i + 1; next < cursor.count && met_[next] == met_[i]; ++next) {
          last = std::max(last, points[next]);
        }
        count(number, met_[i], static_cast<std::int32_t>(next - i), age_of(end - last));
      }
    } else {
      const std::uint32_t samples = std::min(cursor.count, num_samples);
      context.total += static_cast<std::int32_t>(cursor.count);
      context.read += static_cast<std::int32_t>(samples);
      ++num_intervals;
      const Samples ranks(cursor.interval(), samples);
      for (std::uint32_t i = 0; i < samples; ++i) {
        const std::uint32_t rank = ranks[i];
        met_[i] = part.segment->next(rank);
        if (!part.dead.empty() && !part.is_live(part.segment->position(rank))) met_[i] = kEnd;
      }
      for (std::uint32_t i = 0, next = 0; i < samples; i = next) {
        for (next = i + 1; next < samples && met_[next] == met_[i];) ++next;
        meet(number, met_[i], static_cast<std::int32_t>(next - i));
      }
    }
  }
  keep_likely_children(kWeighedShare * static_cast<float>(needed));
  // 2. Count exactly what is weighed, in the contexts that were read only in part.
  for (Child* const found : children()) {
    found->first_interval = static_cast<std::uint32_t>(intervals_.size());
    intervals_.resize(intervals_.size() + num_intervals, kNotLookedUp);
  }
  std::uint32_t interval = 0;
  for (const Cursor& cursor : cursors) {
    const IndexPart& part = parts_[cursor.part];
    const std::size_t number = context_of_[cursor.slot];
    if (cursor.kind == Cursor::Kind::kInterval) {
      std::array<Child*, kMaxWeighed> counted;
      std::array<Token, kMaxWeighed> tokens;
      std::array<Interval, kMaxWeighed> longer;
      std::size_t n = 0;
      for (Child* const found : children()) {
        // A child that was never sampled needs no exact count.
        if (found->evidence[number].met == 0 && num_samples == kNumSamples) continue;
        counted[n] = found;
        tokens[n++] = found->token;
      }
      if (cursor.count > kMaxScanned) {
        part.segment->extend(cursor.interval(), std::span(tokens).first(n), longer);
      }
      const std::span<const Token> next = part.segment->next().subspan(index(cursor.first), cursor.count);
      for (std::size_t i = 0; i < n; ++i) {
        Interval& known = intervals_[counted[i]->first_interval + interval];
        std::int32_t& seen = counted[i]->evidence[number].seen;
        if (cursor.count > kMaxScanned) {
          known = longer[i];
          seen += static_cast<std::int32_t>(longer[i].size());
        } else {
          const std::int32_t met = count_of(next, tokens[i]);
          if (met == 0) known = {};
          seen += met;
        }
      }
      ++interval;
    } else if (cursor.kind == Cursor::Kind::kState && part.automaton->has_many_edges(cursor.first)) {
      const SuffixAutomaton& automaton = *part.automaton;
      const std::int64_t end = part.age_of_end + automaton.num_tokens();
      for (Child* const found : children()) {
        const StateId target = automaton.next(cursor.first, found->token);
        if (target == kNoState) continue;
        const std::int32_t age = age_of(end - automaton.last_end(target));
        Child::Evidence& evidence = found->evidence[number];
        evidence.seen += automaton.count(target);
        evidence.age = std::min(evidence.age, age);
        found->age = std::min(found->age, age);
      }
    }
  }
  estimate_children(depth, path);
}

// Sets the probabilities of the children.
void Drafter::estimate_children(std::int32_t depth, double path) {
  for (std::size_t i = 0; i < num_contexts_; ++i) {
    Context& context = contexts_[i];
    for (const Child* const found : children())
      context.latest = std::min(context.latest, found->evidence[i].age);
    context.first_weight = Estimator::first_weight(context.slot, context.length);
  }
  const std::uint8_t bias = Estimator::bias(depth, path);
  float sum = 0.0F;
  for (Child* const found : children()) {
    Features& features = found->features;
    features.bias = bias;
    features.size = 0;
    for (std::size_t i = 0; i < num_contexts_; ++i) {
      const Context& context = contexts_[i];
      if (context.total == 0) continue;
      const std::int32_t age = found->evidence[i].age;
      const Recency recency{age_class(age), age != kUnknownAge && age == context.latest};
      features.items[features.size++] =
          Estimator::item(context.first_weight, found->evidence[i].seen, context.total, recency);
    }
    found->probability = estimator_->estimate(features);
    sum += found->probability;
  }
  // Each estimate alone is right on average, but only one continuation of a node can be true. If the
  // estimates sum to more than 1, they are too large. Half of the excess is removed, which fits best.
  if (sum > 1.0F) {
    const float scale = 2.0F / (1.0F + sum);
    for (Child* const found : children()) found->probability *= scale;
  }
}

Source Drafter::main_source(const Child& child) const {
  const Context* best = nullptr;
  for (std::size_t i = 0; i < num_contexts_; ++i) {
    if (child.evidence[i].seen > 0 && (best == nullptr || contexts_[i].length > best->length))
      best = &contexts_[i];
  }
  if (best == nullptr || best->slot < kGlobalSlot) return Source::kRequest;
  return best->slot < kCorpusSlot ? Source::kGlobal : Source::kCorpus;
}

// The contexts of a node, extended by one token, for its child at `depth`. The intervals that were looked up
// when the node's children were read are in intervals_ from `first_interval` on.
Drafter::Place Drafter::descend(const Place& parent, std::int32_t depth, Token token,
                                std::uint32_t first_interval) {
  const SuffixAutomaton& request = *parts_[0].automaton;
  Place place{static_cast<std::uint32_t>(cursors_.size()), 0, parent.request};
  if (limits_.own_text) place.request.advance(request, token);
  bool has_request = false;
  for (std::uint32_t i = 0; i < parent.num_cursors; ++i) {
    Cursor cursor = cursors_[parent.first_cursor + i];
    const IndexPart& part = parts_[cursor.part];
    if (cursor.kind == Cursor::Kind::kState) {
      cursor.first = part.automaton->next(cursor.first, token);
      if (cursor.first == kNoState || part.automaton->continuations(cursor.first) <= 0) continue;
    } else if (cursor.kind == Cursor::Kind::kPoints) {
      const std::span<const Token> tokens = part.segment->tokens();
      const auto first = static_cast<std::int32_t>(points_.size());
      for (std::uint32_t p = 0; p < cursor.count; ++p) {
        const std::uint32_t position = points_[index(cursor.first) + p];
        if (tokens[position + static_cast<std::uint32_t>(depth - 1)] == token) points_.push_back(position);
      }
      cursor.first = first;
      cursor.count = static_cast<std::uint32_t>(points_.size()) - static_cast<std::uint32_t>(first);
      if (cursor.count == 0) continue;
    } else {
      Interval longer = intervals_[first_interval++];
      if (longer == kNotLookedUp) longer = part.segment->extend(cursor.interval(), token);
      if (longer.empty()) continue;
      cursor.first = static_cast<std::int32_t>(longer.begin);
      cursor.count = longer.size();
    }
    has_request |= cursor.part == 0;
    cursors_.push_back(cursor);
  }
  const StateMatch& match = place.request;
  if (!has_request && match.length > 0 && request.continuations(match.state) > 0) {
    // It takes the slot of the request's shortest context, which is the weakest evidence.
    cursors_.push_back({Cursor::Kind::kState, kGlobalSlot - 1, 0, match.length - depth, match.state, 0});
  }
  place.num_cursors = static_cast<std::uint32_t>(cursors_.size()) - place.first_cursor;
  to_points(place, depth);
  return place;
}

// From here on, small intervals are followed position by position. Intervals of contexts as long as a segment
// sorts are followed by samples. `depth` is that of the node, 0 for the root.
void Drafter::to_points(Place& place, std::int32_t depth) {
  std::uint32_t kept = place.first_cursor;
  for (std::uint32_t i = place.first_cursor; i < place.first_cursor + place.num_cursors; ++i) {
    Cursor cursor = cursors_[i];
    const bool is_deep = cursor.length + depth >= Segment::kDepth;
    if (cursor.kind == Cursor::Kind::kInterval && (cursor.count <= kMaxPoints || is_deep)) {
      const IndexPart& part = parts_[cursor.part];
      const std::uint32_t samples = std::min(cursor.count, kMaxPoints);
      const auto first = static_cast<std::int32_t>(points_.size());
      const Samples ranks(cursor.interval(), samples);
      for (std::uint32_t s = 0; s < samples; ++s) {
        const std::uint32_t position = part.segment->position(ranks[s]);
        // Positions are stored relative to the root, whatever the depth at which they are followed from.
        if (part.is_live(position)) points_.push_back(position - static_cast<std::uint32_t>(depth));
      }
      cursor.kind = Cursor::Kind::kPoints;
      cursor.first = first;
      cursor.count = static_cast<std::uint32_t>(points_.size()) - static_cast<std::uint32_t>(first);
      if (cursor.count == 0) continue;
    }
    cursors_[kept++] = cursor;
  }
  place.num_cursors = kept - place.first_cursor;
  cursors_.resize(kept);
}

void Drafter::expand(Place place, std::int32_t node, std::int32_t depth, float estimate) {
  read_children(place, depth, estimate);
  const auto push = [&](const Child& child) {
    const float product = estimate * child.probability;
    if (product < limits_.min_token_prob) return;
    heap_.push_back({product, child.age, node, static_cast<std::uint32_t>(candidates_.size())});
    candidates_.push_back({child.token, depth, child.first_interval, main_source(child), child.features});
    std::push_heap(heap_.begin(), heap_.end(), DraftedLater{});
  };
  if (!limits_.chain) {
    for (const Child* const child : children()) push(*child);
    return;
  }
  const std::span<Child* const> all = children();
  const auto best = std::max_element(all.begin(), all.end(), [](const Child* a, const Child* b) {
    return a->probability != b->probability ? a->probability < b->probability : a->age > b->age;
  });
  if (best != all.end()) push(**best);
}

const Draft& Drafter::draft(const DraftSources& sources, std::int32_t max_nodes) {
  draft_.nodes.clear();
  draft_.match_length = 0;
  draft_.score = 0.0;
  heap_.clear();
  candidates_.clear();
  places_.clear();
  places_.push_back(start(sources));
  draft_.has_match = match_length_ > 0;
  expand(places_.front(), 0, 1, 1.0F);
  while (!heap_.empty() && static_cast<std::int32_t>(draft_.nodes.size()) < max_nodes) {
    std::pop_heap(heap_.begin(), heap_.end(), DraftedLater{});
    const Ranked ranked = heap_.back();
    heap_.pop_back();
    const Candidate& added = candidates_[ranked.candidate];
    draft_.nodes.push_back({added.token, ranked.parent, ranked.estimate, added.source, added.features});
    draft_.score += static_cast<double>(ranked.estimate);
    const auto node = static_cast<std::int32_t>(draft_.nodes.size());
    places_.emplace_back();
    if (node == max_nodes || ranked.estimate * kSurest < static_cast<float>(limits_.min_token_prob)) continue;
    const std::int32_t depth = added.depth;
    places_.back() = descend(places_[index(ranked.parent)], depth, added.token, added.first_interval);
    expand(places_.back(), node, depth + 1, ranked.estimate);
  }
  if (!draft_.nodes.empty()) {
    draft_.match_length = match_length_;
  }
  return draft_;
}

void Drafter::trials(const DraftSources& sources, std::span<const Token> truth, std::vector<Trial>& rows) {
  Place place = start(sources);
  float estimate = 1.0F;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const auto depth = static_cast<std::int32_t>(i) + 1;
    read_children(place, depth, estimate);
    const Child* taken = nullptr;
    for (const Child* const child : children()) {
      if (child->token == truth[i]) taken = child;
      rows.push_back({child->features, estimate * child->probability, child->token == truth[i]});
    }
    if (taken == nullptr) return;
    estimate *= taken->probability;
    if (static_cast<double>(estimate) < limits_.min_token_prob / 2) return;
    place = descend(place, depth, truth[i], taken->first_interval);
  }
}

}  // namespace agentspec
