#include "engine.h"

#include <algorithm>
#include <utility>

#include "errors.h"

namespace agentspec {
namespace {

// The longest string that a draft can ask for the continuations of.
std::int32_t max_counted_length(const EngineConfig& config) {
  return config.limits.max_pattern + config.max_draft_tokens;
}

std::string quoted(const std::string& request_id) { return "'" + request_id + "'"; }

}  // namespace

void Engine::Request::append(std::span<const Token> tokens) {
  text.insert(text.end(), tokens.begin(), tokens.end());
  for (const Token token : tokens) automaton.append(token);
}

std::size_t Engine::Request::bytes() const {
  return sizeof(Request) + name.capacity() + text.capacity() * sizeof(Token) + automaton.bytes() +
         matches.capacity() * sizeof(SegmentMatch);
}

Engine::Engine(const EngineConfig& config)
    : config_(config), global_(config.budget_bytes, max_counted_length(config)), drafter_(config.limits) {}

void Engine::check_tokens(std::span<const Token> tokens) const {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < config_.num_token_ids) continue;
    throw TokenError(
        "token ids must be in [0, " + std::to_string(config_.num_token_ids) + "), got " +
        std::to_string(tokens[i]) + " at index " + std::to_string(i) +
        "; pass the ids of the served model's tokenizer, or set EngineConfig.vocab_size to its size");
  }
}

void Engine::check_not_open(const std::string& request_id) const {
  if (requests_.contains(request_id)) {
    throw DuplicateRequestError("request " + quoted(request_id) +
                                " is open already; close() it first, or give each request an id of its own");
  }
}

Engine::Request& Engine::find(const std::string& request_id) const {
  const auto found = requests_.find(request_id);
  if (found == requests_.end()) {
    throw UnknownRequestError(
        "request " + quoted(request_id) +
        " is not open; open() it with its prompt first, and use it no more after close()");
  }
  return *found->second;
}

void Engine::open(const std::string& request_id, std::span<const Token> prompt, const std::string& name) {
  if (prompt.empty()) {
    throw TokenError("the prompt of request " + quoted(request_id) +
                     " must have at least one token, got none; a draft continues the last token");
  }
  check_tokens(prompt);
  {
    const std::lock_guard lock(mutex_);
    check_not_open(request_id);
  }
  auto request = std::make_unique<Request>(name, max_counted_length(config_));
  request->automaton.reserve(prompt.size());
  request->append(prompt);
  request->prompt_length = prompt.size();
  const std::lock_guard lock(mutex_);
  check_not_open(request_id);
  requests_.emplace(request_id, std::move(request));
}

void Engine::extend(const std::string& request_id, std::span<const Token> tokens) {
  check_tokens(tokens);
  const std::lock_guard lock(mutex_);
  find(request_id).append(tokens);
}

// Brings the request's matches up to its text and to the segments that its namespace has now.
void Engine::match_segments(Request& request) {
  segments_.clear();
  segment_matches_.clear();
  new_matches_.clear();
  const Segments* const segments = global_.find(request.name);
  if (segments != nullptr) {
    const std::size_t text_length = request.text.size();
    const std::size_t max_pattern = static_cast<std::size_t>(config_.limits.max_pattern);
    auto known = request.matches.begin();
    for (const auto& segment : *segments) {
      while (known != request.matches.end() && known->segment_id < segment->id) ++known;
      // Anew from the last P tokens, or on from where the last draft stopped if that is not farther back.
      SegmentMatch found{
          segment->id, segment->num_outputs, text_length - std::min(text_length, max_pattern), {}};
      if (known != request.matches.end() && known->segment_id == segment->id &&
          known->segment_version == segment->num_outputs && known->text_length >= found.text_length) {
        found = *known;
      }
      for (; found.text_length < text_length; ++found.text_length) {
        found.match.advance(segment->automaton, request.text[found.text_length]);
      }
      new_matches_.push_back(found);
      segments_.push_back(&segment->automaton);
      segment_matches_.push_back(found.match);
    }
  }
  request.matches.assign(new_matches_.begin(), new_matches_.end());
}

DraftBatch Engine::draft(std::span<const std::string> request_ids, std::span<const std::int32_t> max_tokens) {
  if (!max_tokens.empty() && max_tokens.size() != request_ids.size()) {
    throw ConfigError("max_tokens must give one limit for each of the " + std::to_string(request_ids.size()) +
                      " requests, got " + std::to_string(max_tokens.size()));
  }
  for (std::size_t i = 0; i < max_tokens.size(); ++i) {
    if (max_tokens[i] >= 0) continue;
    throw ConfigError("max_tokens must be >= 0, got " + std::to_string(max_tokens[i]) + " at index " +
                      std::to_string(i) + "; pass 0 to draft nothing for a row");
  }
  DraftBatch batch;
  batch.offsets.push_back(0);
  const std::lock_guard lock(mutex_);
  std::vector<Request*> requests;
  for (const std::string& request_id : request_ids) requests.push_back(&find(request_id));
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Request& request = *requests[i];
    batch.tokens.push_back(request.text.back());
    batch.parents.push_back(-1);
    batch.estimates.push_back(1.0F);
    batch.sources.push_back(static_cast<std::uint8_t>(Source::kRoot));
    const std::int32_t cap =
        max_tokens.empty() ? config_.max_draft_tokens : std::min(max_tokens[i], config_.max_draft_tokens);
    if (cap == 0) {
      batch.match_lens.push_back(0);
      batch.scores.push_back(0.0F);
    } else {
      match_segments(request);
      const Draft& draft = drafter_.draft(request.automaton, segments_, segment_matches_, cap);
      for (const DraftNode& node : draft.nodes) {
        batch.tokens.push_back(node.token);
        batch.parents.push_back(node.parent);
        batch.estimates.push_back(static_cast<float>(node.estimate));
        batch.sources.push_back(static_cast<std::uint8_t>(draft.source));
      }
      batch.match_lens.push_back(draft.match_length);
      batch.scores.push_back(static_cast<float>(draft.score));
    }
    batch.offsets.push_back(static_cast<std::int32_t>(batch.tokens.size()));
  }
  return batch;
}

void Engine::close(const std::string& request_id, bool keep, std::optional<std::size_t> num_output_tokens) {
  std::unique_ptr<Request> request;  // freed after the lock is given back
  const std::lock_guard lock(mutex_);
  std::size_t kept = find(request_id).text.size() - find(request_id).prompt_length;
  if (num_output_tokens.has_value()) kept = std::min(kept, *num_output_tokens);
  const auto found = requests_.find(request_id);
  request = std::move(found->second);
  requests_.erase(found);
  if (keep) global_.add(request->name, std::span(request->text).subspan(request->prompt_length, kept));
}

std::size_t Engine::num_tokens(const std::string& request_id) const {
  const std::lock_guard lock(mutex_);
  return find(request_id).text.size();
}

bool Engine::is_open(const std::string& request_id) const {
  const std::lock_guard lock(mutex_);
  return requests_.contains(request_id);
}

void Engine::clear() {
  const std::lock_guard lock(mutex_);
  global_.clear();
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats{requests_.size(), 0, global_.stats()};
  for (const auto& [request_id, request] : requests_) stats.request_bytes += request->bytes();
  return stats;
}

void Engine::check_integrity() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [request_id, request] : requests_) {
    request->automaton.check_integrity();
    if (request->prompt_length > request->text.size() ||
        static_cast<std::size_t>(request->automaton.num_tokens()) != request->text.size()) {
      throw IntegrityError("request " + quoted(request_id) + ": its index has " +
                           std::to_string(request->automaton.num_tokens()) + " tokens, its text " +
                           std::to_string(request->text.size()));
    }
  }
  global_.check_integrity();
}

}  // namespace agentspec
