// The engine's work in a step: it updates the matches, drafts, and learns from the drafts.

#include <algorithm>
#include <limits>
#include <new>
#include <numeric>
#include <utility>

#include "engine.h"
#include "errors.h"

namespace agentspec {
namespace {

// A match is extended by at most this many new tokens; for more it is faster to search again.
constexpr std::size_t kMaxCarried = 6;
// Smaller batches are drafted on the caller's thread, because waking another thread takes longer than their
// rows.
constexpr std::size_t kSharedRows = 8;
// A request's prediction is numbered apart from the parts of the global index, corpora and siblings.
constexpr std::uint64_t kPrediction = 1ULL << 60;

void observe(Estimator& estimator, std::span<const DraftNode> drafted, std::span<const Token> tokens) {
  std::int32_t node = 0;
  for (const Token token : tokens) {
    std::int32_t taken = -1;
    for (std::size_t i = 0; i < drafted.size(); ++i) {
      const DraftNode& child = drafted[i];
      if (child.parent != node) continue;
      estimator.observe(child.features, child.token == token);
      if (child.token == token) taken = static_cast<std::int32_t>(i) + 1;
    }
    if (taken < 0) return;
    node = taken;
  }
}

}  // namespace

// Tells the estimator of the request's namespace which nodes of a draft came true.
void Engine::learn(Request& request, std::span<const DraftNode> drafted, std::span<const Token> tokens) {
  if (config_.learning_rate == 0.0F || config_.plain_rule || drafted.empty()) return;
  try {
    observe(tenants_.learner(*request.tenant), drafted, tokens);
  } catch (const std::bad_alloc&) {
    // Nothing is learnt.
  }
}

// Must be called before the request gives back its tenant.
void Engine::learn_judged(Request& request) {
  learn(request, request.judged, request.judged_by);
  request.judged.clear();
}

void Engine::learn(const Rows& rows) {
  const std::lock_guard lock(mutex_);
  for (const RequestPtr& request : rows.requests_) {
    if (request && request->is_open) learn_judged(*request);
  }
}

Engine::Rows Engine::rows(std::span<const std::string_view> request_ids) const {
  Rows result;
  result.requests_.reserve(request_ids.size());
  const std::lock_guard lock(mutex_);
  for (const std::string_view request_id : request_ids) {
    const auto found = requests_.find(request_id);
    result.requests_.push_back(found == requests_.end() ? nullptr : found->second);
  }
  return result;
}

// Returns false if the request has no index from now on.
bool Engine::grow(Request& request, std::span<const std::int64_t> tokens) {
  learn_judged(request);
  request.judged.swap(request.drafted);
  request.drafted.clear();
  try {
    request.judged_by.assign(tokens.begin(), tokens.end());
    const bool is_valid = std::all_of(tokens.begin(), tokens.end(), [&](std::int64_t token) {
      return token >= 0 && token < config_.num_token_ids;
    });
    if (!is_valid) {
      request.judged.clear();
    } else {
      request.output.insert(request.output.end(), request.judged_by.begin(), request.judged_by.end());
      request.last_token = request.judged_by.back();
      if (request.is_ready) request.index->append(request.judged_by);
      return true;
    }
  } catch (const std::bad_alloc&) {
    request.judged.clear();
  }
  // An index that is being built belongs to its builder, and nothing is drafted from it either.
  if (std::exchange(request.is_ready, false)) request.index.reset();
  request.max_length = 0;
  return false;
}

std::size_t Engine::follow(const Rows& rows, std::span<const std::int64_t> accepted, std::size_t width,
                           std::span<const std::int64_t> ends, std::span<const std::int64_t> padding) {
  const std::size_t b = rows.size();
  if (width == 0 || accepted.size() != b * width || ends.size() != b ||
      (!padding.empty() && padding.size() != b)) {
    throw ConfigError("accepted must be [" + std::to_string(b) + ", width], ends [" + std::to_string(b) +
                      "] and padding the same or nothing, got " + std::to_string(accepted.size()) + ", " +
                      std::to_string(ends.size()) + " and " + std::to_string(padding.size()) +
                      " elements; pass those of one forward");
  }
  const std::lock_guard lock(mutex_);
  std::size_t num_lost = 0;
  for (std::size_t row = 0; row < b; ++row) {
    Request* const request = rows.requests_[row].get();
    if (request == nullptr) continue;
    // A device that failed may report anything.
    const bool is_end = ends[row] >= 0 && ends[row] <= std::numeric_limits<std::int32_t>::max();
    request->end = is_end ? ends[row] : -1;
    const std::int64_t count = accepted[row * width];
    if (!request->is_open || !is_end || count <= 0 || count >= static_cast<std::int64_t>(width)) continue;
    // The last accepted token has no KV yet.
    const std::int64_t length = ends[row] + 1 - (padding.empty() ? 0 : padding[row]) - count;
    if (length != static_cast<std::int64_t>(request->length())) continue;
    if (grow(*request, accepted.subspan(row * width + 1, static_cast<std::size_t>(count)))) {
      show_later(rows.requests_[row]);
    } else {
      ++num_lost;
    }
  }
  return num_lost;
}

void Engine::complete(const std::string& request_id, std::span<const Token> output) {
  check_tokens(output);
  const std::lock_guard lock(mutex_);
  const RequestPtr request = find(request_id);
  const std::size_t known = request->output.size();
  if (known >= output.size()) return;
  const std::vector<std::int64_t> tokens(output.begin() + static_cast<std::ptrdiff_t>(known), output.end());
  if (grow(*request, tokens)) show_later(request);
}

void Engine::match_part(Request& request, const IndexPart& part, std::uint64_t id, std::size_t& known,
                        std::vector<PartMatch>& matches, std::int32_t max_pattern) const {
  const SuffixAutomaton& own = request.index->automaton();
  const std::vector<Token>& text = own.text();
  // Text that was rewritten lies before an end.
  const std::size_t farthest =
      text.size() - static_cast<std::size_t>(std::min(own.tail_length(), max_pattern));
  // Parts come in the order of the last draft, except those that were replaced since.
  std::size_t at = known;
  while (at < request.matches.size() && request.matches[at].part_id != id) ++at;
  KnownMatch found{id, 0, farthest, {}, {}};
  if (part.automaton) found.part_tokens = part.automaton->num_tokens();
  if (at < request.matches.size()) {
    known = at;
    if (request.matches[at].part_tokens == found.part_tokens) found = request.matches[at];
  }
  if (part.automaton) {
    if (found.text_length < farthest) found = {id, found.part_tokens, farthest, {}, {}};
    for (; found.text_length < text.size(); ++found.text_length) {
      found.state.advance(*part.automaton, text[found.text_length]);
    }
  } else if (found.context.length > 0 && text.size() - found.text_length <= kMaxCarried) {
    for (; found.text_length < text.size(); ++found.text_length) {
      found.context = part.segment->advance(found.context, text[found.text_length], max_pattern);
    }
  } else {
    found.context = part.segment->locate(std::span(text).subspan(farthest), max_pattern);
    found.text_length = text.size();
  }
  request.new_matches.push_back(found);
  if (found.state.length > 0 || found.context.length > 0) {
    matches.push_back({part, found.state, found.context});
  }
}

// Brings the request's matches up to date with its text and with the parts that its namespace has now.
// Returns whether there are any matches.
bool Engine::match_parts(Request& request) const {
  request.global.clear();
  request.corpora.clear();
  request.new_matches.clear();
  std::size_t known = 0;
  const std::span<const GlobalPart> parts = global_.find(request.name);
  bool has_parts = !parts.empty();
  std::int64_t num_later_tokens = 0;
  for (const GlobalPart& part : parts) num_later_tokens += static_cast<std::int64_t>(part.num_tokens());
  for (const GlobalPart& part : parts) {
    num_later_tokens -= static_cast<std::int64_t>(part.num_tokens());
    const IndexPart source{part.growing ? &part.growing->automaton : nullptr, part.segment.get(),
                           num_later_tokens, part.dead};
    match_part(request, source, part.id, known, request.global, config_.limits.max_pattern);
  }
  has_parts = match_siblings(request, known) || has_parts;
  if (request.prediction) {
    has_parts = true;
    match_part(request, {request.prediction.get(), nullptr, 0, {}}, kPrediction, known, request.global,
               config_.limits.max_pattern);
  }
  for (const Corpus& corpus : corpora_) {
    if (!corpus.names.empty() &&
        std::find(corpus.names.begin(), corpus.names.end(), request.name) == corpus.names.end()) {
      continue;
    }
    has_parts = true;
    match_part(request, {nullptr, corpus.segment.get(), 0, {}}, corpus.id, known, request.corpora,
               config_.limits.max_pattern);
  }
  request.matches.swap(request.new_matches);
  return has_parts;
}

DraftSources Engine::sources(const Request& request) const {
  return {&tenants_.estimator(request.tenant.get()), &request.index->automaton(), request.global,
          request.corpora};
}

void Engine::draft_row(std::size_t thread, Request& request, std::int32_t max_nodes) {
  request.draft.nodes.clear();
  request.draft.match_length = 0;
  request.draft.score = 0.0;
  request.outcome = max_nodes == 0 ? Outcome::kNoRoom : Outcome::kNotIndexed;
  if (!request.is_ready || max_nodes == 0) return;
  try {
    const bool has_parts = match_parts(request);
    const DraftSources from = sources(request);
    const Draft& draft = config_.plain_rule ? plain_drafters_[thread].draft(from, max_nodes)
                                            : drafters_[thread].draft(from, max_nodes);
    request.draft.nodes.assign(draft.nodes.begin(), draft.nodes.end());
    request.draft.match_length = draft.match_length;
    request.draft.score = draft.score;
    if (!draft.nodes.empty()) {
      request.outcome = Outcome::kDrafted;
    } else if (!has_parts) {
      request.outcome = Outcome::kNoOutputs;
    } else {
      request.outcome = draft.has_match ? Outcome::kUnlikely : Outcome::kNoMatch;
    }
  } catch (const std::bad_alloc&) {
    // The row gets only its root.
    request.outcome = Outcome::kNoMemory;
  }
}

void Engine::draft(std::span<const std::string_view> request_ids, std::span<const std::int32_t> max_tokens,
                   DraftBatch& batch) {
  const std::lock_guard lock(mutex_);
  find_rows(request_ids, max_tokens);
  draft_rows(batch);
}

std::size_t Engine::draft_followed(const Rows& rows, std::span<const std::int64_t> padding,
                                   std::int32_t max_tokens, const DraftSpans& out,
                                   std::span<std::int64_t> ends) {
  const std::size_t b = rows.size();
  if (max_tokens < 0 || ends.size() != b || (!padding.empty() && padding.size() != b)) {
    throw ConfigError("max_tokens must be >= 0, ends [" + std::to_string(b) +
                      "] and padding the same or nothing, got " + std::to_string(max_tokens) + ", " +
                      std::to_string(ends.size()) + " and " + std::to_string(padding.size()) + " elements");
  }
  const std::lock_guard lock(mutex_);
  rows_.assign(rows.requests_.begin(), rows.requests_.end());
  limits_.assign(b, 0);
  const std::int32_t most = std::min(max_tokens, config_.max_draft_tokens);
  const auto is_known = [&](const Request& request, std::size_t row) {
    return ends[row] >= 0 && static_cast<std::int64_t>(request.length()) ==
                                 ends[row] + 1 - (padding.empty() ? 0 : padding[row]);
  };
  for (std::size_t row = 0; row < b; ++row) {
    RequestPtr& request = rows_[row];
    ends[row] = request == nullptr ? -1 : request->end;
    if (request && !request->is_open) request.reset();
    if (!request || !is_known(*request, row)) continue;
    // One token of the room is left for the bonus token.
    const std::size_t length = request->length();
    const std::size_t left = request->max_length > length ? request->max_length - length - 1 : 0;
    limits_[row] = static_cast<std::int32_t>(std::min(left, static_cast<std::size_t>(most)));
  }
  const std::size_t nodes = draft_into(out);
  for (std::size_t row = 0; row < b; ++row) {
    if (out.outcomes[row] != static_cast<std::uint8_t>(Outcome::kNoRoom)) continue;
    if (is_known(*rows.requests_[row], row)) continue;
    out.outcomes[row] = static_cast<std::uint8_t>(Outcome::kOtherText);
  }
  return nodes;
}

// Drafts for rows_ within limits_, and then clears rows_.
std::size_t Engine::draft_into(const DraftSpans& out) {
  const std::size_t most_nodes = std::accumulate(
      limits_.begin(), limits_.end(), limits_.size(),
      [](std::size_t sum, std::int32_t limit) { return sum + static_cast<std::size_t>(limit); });
  if (const std::size_t rows = rows_.size(); rows > out.scores.size() || most_nodes > out.tokens.size()) {
    rows_.clear();
    throw ConfigError("the buffers must have room for " + std::to_string(rows) + " rows of " +
                      std::to_string(most_nodes) + " nodes in all, roots included, got room for " +
                      std::to_string(out.scores.size()) + " rows of " + std::to_string(out.tokens.size()) +
                      " nodes; make larger ones, or pass fewer requests or a smaller max_tokens");
  }
  std::copy(limits_.begin(), limits_.end(), out.rooms.begin());
  draft_rows(batch_);
  std::copy(batch_.offsets.begin(), batch_.offsets.end(), out.offsets.begin());
  std::copy(batch_.tokens.begin(), batch_.tokens.end(), out.tokens.begin());
  std::copy(batch_.parents.begin(), batch_.parents.end(), out.parents.begin());
  std::copy(batch_.estimates.begin(), batch_.estimates.end(), out.estimates.begin());
  std::copy(batch_.sources.begin(), batch_.sources.end(), out.sources.begin());
  std::copy(batch_.match_lens.begin(), batch_.match_lens.end(), out.match_lens.begin());
  std::copy(batch_.scores.begin(), batch_.scores.end(), out.scores.begin());
  std::copy(batch_.outcomes.begin(), batch_.outcomes.end(), out.outcomes.begin());
  return batch_.tokens.size();
}

// Sets rows_ and limits_.
void Engine::find_rows(std::span<const std::string_view> request_ids,
                       std::span<const std::int32_t> max_tokens) {
  if (!max_tokens.empty() && max_tokens.size() != request_ids.size()) {
    throw ConfigError("max_tokens must give one limit for each of the " + std::to_string(request_ids.size()) +
                      " requests, got " + std::to_string(max_tokens.size()));
  }
  for (std::size_t i = 0; i < max_tokens.size(); ++i) {
    if (max_tokens[i] >= 0) continue;
    throw ConfigError("max_tokens must be >= 0, got " + std::to_string(max_tokens[i]) + " at index " +
                      std::to_string(i) + "; pass 0 to draft nothing for a row");
  }
  rows_.clear();
  limits_.clear();
  for (std::size_t i = 0; i < request_ids.size(); ++i) {
    rows_.push_back(find(request_ids[i]));
    limits_.push_back(max_tokens.empty() ? config_.max_draft_tokens
                                         : std::min(max_tokens[i], config_.max_draft_tokens));
  }
}

// Drafts for rows_, and then clears it. A null row gets a root without a token.
void Engine::draft_rows(DraftBatch& batch) {
  batch.offsets.assign(1, 0);
  batch.tokens.clear();
  batch.parents.clear();
  batch.estimates.clear();
  batch.sources.clear();
  batch.match_lens.clear();
  batch.scores.clear();
  batch.outcomes.clear();
  const auto append_node = [&](const DraftNode& node) {
    batch.tokens.push_back(node.token);
    batch.parents.push_back(node.parent);
    batch.estimates.push_back(static_cast<float>(node.estimate));
    batch.sources.push_back(static_cast<std::uint8_t>(node.source));
  };
  const auto append = [&](Request* request) {
    append_node({request != nullptr ? request->last_token : 0, -1, 1.0, Source::kRoot, {}});
    if (request != nullptr) {
      for (const DraftNode& node : request->draft.nodes) append_node(node);
    }
    batch.match_lens.push_back(request != nullptr ? request->draft.match_length : 0);
    batch.scores.push_back(request != nullptr ? static_cast<float>(request->draft.score) : 0.0F);
    const Outcome outcome = request != nullptr ? request->outcome : Outcome::kNotOpen;
    batch.outcomes.push_back(static_cast<std::uint8_t>(outcome));
    batch.offsets.push_back(static_cast<std::int32_t>(batch.tokens.size()));
    if (request != nullptr) request->drafted.swap(request->draft.nodes);
  };
  // A request that occurs twice has only one place for its draft, so such rows are drafted one by one.
  bool is_distinct = true;
  const bool is_shared = pool_.num_threads() > 1 && rows_.size() >= kSharedRows;
  if (is_shared) {
    sorted_.clear();
    for (const RequestPtr& row : rows_) {
      if (row) sorted_.push_back(row.get());
    }
    std::sort(sorted_.begin(), sorted_.end());
    is_distinct = std::adjacent_find(sorted_.begin(), sorted_.end()) == sorted_.end();
  }
  if (is_shared && is_distinct) {
    pool_.for_rows(rows_.size(), [&](std::size_t thread, std::size_t row) {
      if (rows_[row]) draft_row(thread, *rows_[row], limits_[row]);
    });
    for (const RequestPtr& row : rows_) append(row.get());
  } else {
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      if (rows_[row]) draft_row(0, *rows_[row], limits_[row]);
      append(rows_[row].get());
    }
  }
  rows_.clear();
}

void Engine::trials(const std::string& request_id, std::span<const Token> truth,
                    std::vector<Drafter::Trial>& rows) {
  const std::lock_guard lock(mutex_);
  Request& request = *find(request_id);
  if (!request.is_ready) return;
  match_parts(request);
  drafters_.front().trials(sources(request), truth, rows);
}

}  // namespace agentspec
