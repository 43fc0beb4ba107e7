#include "engine.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <random>
#include <utility>

#include "errors.h"
#include "segment_file.h"

namespace agentspec {
namespace {

// Tokens that are indexed while the lock is held once; some microseconds, or a tenth of a millisecond
// where a vector has to grow.
constexpr std::size_t kSliceTokens = 64;
// Room that an index is built with for the output, so that it need not grow during the first steps.
constexpr std::size_t kReservedTokens = 512;
// Corpora are numbered apart from the parts of the global index.
constexpr std::uint64_t kFirstCorpus = 1ULL << 62;

// The longest string that a draft can ask for the continuations of.
std::int32_t max_counted_length(const EngineConfig& config) {
  return config.limits.max_pattern + config.max_draft_tokens;
}

std::string quoted(std::string_view request_id) { return "'" + std::string(request_id) + "'"; }

Segment::Identity identity_of(const EngineConfig& config, SegmentKind kind) {
  return {config.num_token_ids, config.tokenizer, kind};
}

std::int64_t seconds_since_1970() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Ids of outputs are unique over all engines that exchange segments.
std::uint64_t first_output_id() {
  std::random_device random;
  return (static_cast<std::uint64_t>(random()) << 32) + 1;
}

GlobalIndexConfig global_config(const EngineConfig& config) {
  GlobalIndexConfig result;
  result.budget_bytes = config.budget_bytes;
  // What grows takes several times the memory of what is sealed, so it gets a small part of the budget.
  result.max_growing_tokens =
      std::clamp<std::size_t>(config.budget_bytes / 512, 64, config.max_growing_tokens);
  result.max_counted_length = max_counted_length(config);
  result.identity = identity_of(config, SegmentKind::kOutputs);
  return result;
}

}  // namespace

Engine::Engine(const EngineConfig& config)
    : config_(config),
      global_(global_config(config)),
      estimator_(config.weights, config.learning_rate),
      next_output_(first_output_id()),
      next_corpus_(kFirstCorpus),
      conversations_(config.conversation_bytes),
      pool_(config.num_threads),
      slow_worker_(config.background),
      quick_worker_(config.background) {
  for (std::size_t thread = 0; thread < pool_.num_threads(); ++thread) {
    drafters_.emplace_back(config.limits, estimator_);
    plain_drafters_.emplace_back(config.limits);
  }
}

Engine::~Engine() = default;

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

const Engine::RequestPtr& Engine::find(std::string_view request_id) const {
  const auto found = requests_.find(request_id);
  if (found == requests_.end()) {
    throw UnknownRequestError(
        "request " + quoted(request_id) +
        " is not open; open() it with its prompt first, and use it no more after close()");
  }
  return found->second;
}

void Engine::open(const std::string& request_id, std::span<const Token> prompt, const std::string& name) {
  if (prompt.empty()) {
    throw TokenError("the prompt of request " + quoted(request_id) +
                     " must have at least one token, got none; a draft continues the last token");
  }
  check_tokens(prompt);
  auto request = std::make_shared<Request>();
  request->name = name;
  request->num_prompt_tokens = prompt.size();
  request->last_token = prompt.back();
  const std::span<const Token> tail = prompt.last(std::min(prompt.size(), config_.prompt_tail));
  request->prompt_tail.assign(tail.begin(), tail.end());
  if (!config_.background) {
    {
      const std::lock_guard lock(mutex_);
      check_not_open(request_id);
    }
    build(request, {prompt.begin(), prompt.end()});
    const std::lock_guard lock(mutex_);
    check_not_open(request_id);
    requests_.emplace(request_id, std::move(request));
    return;
  }
  std::vector<Token> copy(prompt.begin(), prompt.end());
  {
    const std::lock_guard lock(mutex_);
    check_not_open(request_id);
    requests_.emplace(request_id, request);
  }
  try {
    // If there is no memory to build it, the request stays without an index and gets no drafts.
    quick_worker_.post([this, request, copy = std::move(copy)] { build(request, copy); });
  } catch (const std::bad_alloc&) {
    const std::lock_guard lock(mutex_);
    requests_.erase(request_id);
    throw;
  }
}

// Makes a request's index, from an earlier turn's if there is one.
void Engine::build(const RequestPtr& request, const std::vector<Token>& prompt) {
  bool is_ready = false;
  while (!is_ready) {
    std::uint64_t num_erasures;
    {
      const std::lock_guard lock(mutex_);
      num_erasures = num_erasures_;
    }
    std::size_t num_known = 0;
    std::unique_ptr<TextIndex> index;
    {
      const std::lock_guard lock(conversations_mutex_);
      index = conversations_.take(request->name, prompt, num_known);
    }
    if (index == nullptr) index = std::make_unique<TextIndex>(max_counted_length(config_));
    index->reserve(prompt.size() - num_known + kReservedTokens);
    index->append(std::span(prompt).subspan(num_known));
    // The output may have grown meanwhile. It is caught up with in slices, the last one under the lock.
    for (std::size_t num_indexed = 0; !is_ready;) {
      const std::lock_guard lock(mutex_);
      if (num_erasures != num_erasures_ && index->is_rewritten()) break;  // what was erased may be in it
      const std::size_t waiting = request->output.size() - num_indexed;
      const std::size_t slice = std::min(waiting, kSliceTokens);
      index->append(std::span(request->output).subspan(num_indexed, slice));
      num_indexed += slice;
      if (slice < waiting) continue;
      request->index = std::move(index);
      request->is_ready = is_ready = true;
      spared_tokens_ += num_known;
    }
  }
}

void Engine::extend(const std::string& request_id, std::span<const Token> tokens) {
  check_tokens(tokens);
  if (tokens.empty()) {
    const std::lock_guard lock(mutex_);
    (void)find(request_id);
    return;
  }
  const std::lock_guard lock(mutex_);
  Request& request = *find(request_id);
  request.output.insert(request.output.end(), tokens.begin(), tokens.end());
  request.last_token = tokens.back();
  learn(request, tokens);
  if (!request.is_ready) return;
  try {
    request.index->append(tokens);
  } catch (const std::bad_alloc&) {
    // It is broken. The request goes on without an index and gets no drafts.
    request.is_ready = false;
    request.index.reset();
  }
}

std::uint64_t Engine::close(const std::string& request_id, bool keep,
                            std::optional<std::size_t> num_output_tokens) {
  RequestPtr request;
  Output output;
  std::uint64_t num_erasures;
  {
    const std::lock_guard lock(mutex_);
    request = find(request_id);
    std::size_t kept = keep ? request->output.size() : 0;
    if (num_output_tokens.has_value()) kept = std::min(kept, *num_output_tokens);
    if (kept > 0) {
      output.tokens.reserve(request->prompt_tail.size() + kept);
      output.tokens = request->prompt_tail;
      output.tokens.insert(output.tokens.end(), request->output.begin(),
                           request->output.begin() + static_cast<std::ptrdiff_t>(kept));
      output.prompt_tail = static_cast<std::uint32_t>(request->prompt_tail.size());
      output.time = seconds_since_1970();
      output.id = next_output_++;
      waiting_.emplace(output.id, request->name);
    }
    num_erasures = num_erasures_;
    requests_.erase(request_id);
  }
  const std::uint64_t id = output.id;
  const std::string name = request->name;
  bool is_posted = false;
  try {
    quick_worker_.post([this, request = std::move(request), keep, num_erasures]() mutable {
      if (keep) retire(request, num_erasures);
      request.reset();
    });
    if (id == 0) return 0;
    quick_worker_.post([this, name, output = std::move(output)] { add_output(name, output); });
    is_posted = true;
  } catch (const std::bad_alloc&) {
    // The output is not kept.
  }
  if (is_posted) return id;
  const std::lock_guard lock(mutex_);
  waiting_.erase(id);
  return 0;
}

// Keeps a closed request's index for the conversation's next turn, if nothing was erased since it was closed.
void Engine::retire(const RequestPtr& request, std::uint64_t num_erasures) {
  std::list<Conversations::Entry> freed;
  std::unique_ptr<TextIndex> index;
  const std::lock_guard conversations_lock(conversations_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (request->is_ready && num_erasures == num_erasures_) index = std::move(request->index);
    request->is_ready = false;
  }
  if (index) freed = conversations_.put(request->name, std::move(index));
}

void Engine::add_output(const std::string& name, const Output& output) {
  {
    const std::lock_guard adding(adding_mutex_);
    bool is_begun = false;
    for (bool is_complete = false; !is_complete;) {
      const std::lock_guard lock(mutex_);
      if (!waiting_.contains(output.id)) return;  // erased meanwhile, and what was added of it too
      try {
        if (!is_begun && !global_.begin(name, output)) break;
        is_begun = true;
        is_complete = global_.add_slice(output, kSliceTokens);
      } catch (const std::bad_alloc&) {
        global_.give_up_adding(output);
        break;
      }
    }
    const std::lock_guard lock(mutex_);
    waiting_.erase(output.id);
  }
  compact_later();
}

void Engine::compact_later() {
  try {
    slow_worker_.post([this] { compact(); });
  } catch (const std::bad_alloc&) {
    // The next output will ask for it again.
  }
}

// Seals, merges and evicts until there is nothing more to do.
void Engine::compact() {
  const std::lock_guard compacting(compacting_mutex_);
  for (;;) {
    std::optional<GlobalIndex::Plan> plan;
    std::vector<GlobalPart> freed;
    {
      const std::lock_guard lock(mutex_);
      plan = global_.plan();
    }
    if (!plan) return;
    try {
      std::shared_ptr<const Segment> segment =
          GlobalIndex::seal(*plan, identity_of(config_, SegmentKind::kOutputs));
      const std::lock_guard lock(mutex_);
      freed = global_.publish(*plan, std::move(segment));
    } catch (const std::bad_alloc&) {
      const std::lock_guard lock(mutex_);
      // What is too large to be merged now stays as it is, unless the budget wants it smaller.
      if (plan->num_dropped == 0) return;
      freed = global_.give_up(*plan);
    }
  }
}

std::size_t Engine::num_tokens(const std::string& request_id) const {
  const std::lock_guard lock(mutex_);
  const Request& request = *find(request_id);
  return request.num_prompt_tokens + request.output.size();
}

bool Engine::is_open(const std::string& request_id) const {
  const std::lock_guard lock(mutex_);
  return requests_.contains(request_id);
}

void Engine::flush() {
  quick_worker_.wait();
  slow_worker_.wait();
}

// Adds to `found` the open requests whose indexes have more than their own text, which are to be built anew.
// Throws nothing if there is room for all requests.
void Engine::take_rewritten(std::vector<RequestPtr>& found) {
  ++num_erasures_;
  for (const auto& [request_id, request] : requests_) {
    if (!request->is_ready || !request->index->is_rewritten()) continue;
    request->is_ready = false;
    found.push_back(request);
  }
}

void Engine::build_anew(const std::vector<RequestPtr>& requests) {
  for (const RequestPtr& request : requests) {
    try {
      quick_worker_.post([this, request] {
        std::vector<Token> prompt = request->index->text();
        prompt.resize(request->num_prompt_tokens);
        request->index.reset();
        build(request, prompt);
      });
    } catch (const std::bad_alloc&) {
      // The request goes on without an index and gets no drafts.
    }
  }
}

void Engine::clear() {
  std::vector<GlobalPart> freed;
  std::list<Conversations::Entry> freed_texts;
  std::vector<RequestPtr> rewritten;
  {
    const std::lock_guard lock(mutex_);
    rewritten.reserve(requests_.size());
    freed = global_.clear();
    waiting_.clear();
    take_rewritten(rewritten);
  }
  {
    const std::lock_guard lock(conversations_mutex_);
    freed_texts = conversations_.clear();
  }
  build_anew(rewritten);
}

bool Engine::erase_output(std::uint64_t output_id) {
  bool was_there;
  std::vector<RequestPtr> rewritten;
  std::list<Conversations::Entry> freed;
  {
    const std::lock_guard lock(mutex_);
    rewritten.reserve(requests_.size());
    was_there = global_.erase_output(output_id);
    // An output that is being added is also among those that wait.
    was_there = waiting_.erase(output_id) > 0 || was_there;
    take_rewritten(rewritten);
  }
  {
    // The text of the conversation that the output was a part of may be in any of these.
    const std::lock_guard lock(conversations_mutex_);
    freed = conversations_.clear();
  }
  build_anew(rewritten);
  if (was_there) compact_later();
  return was_there;
}

bool Engine::erase_namespace(const std::string& name) {
  std::vector<GlobalPart> freed;
  std::list<Conversations::Entry> freed_texts;
  std::vector<RequestPtr> rewritten;
  std::size_t num_waiting;
  {
    const std::lock_guard lock(mutex_);
    rewritten.reserve(requests_.size());
    freed = global_.erase_namespace(name);
    num_waiting = std::erase_if(waiting_, [&](const auto& output) { return output.second == name; });
    take_rewritten(rewritten);
  }
  {
    const std::lock_guard lock(conversations_mutex_);
    freed_texts = conversations_.erase(name);
  }
  build_anew(rewritten);
  return !freed.empty() || num_waiting > 0;
}

std::size_t Engine::save(const std::string& name, const std::string& path) {
  flush();
  const std::lock_guard compacting(compacting_mutex_);
  for (;;) {
    std::optional<GlobalIndex::Plan> plan;
    std::shared_ptr<const Segment> segment;
    {
      const std::lock_guard adding(adding_mutex_);
      const std::lock_guard lock(mutex_);
      plan = global_.plan_merge_of_all(name);
      if (!plan) {
        const std::span<const GlobalPart> parts = global_.find(name);
        if (!parts.empty()) segment = parts.front().segment;
      }
    }
    if (!plan) {
      if (!segment) return 0;
      agentspec::save(*segment, path);
      return segment->outputs().size();
    }
    segment = GlobalIndex::seal(*plan, identity_of(config_, SegmentKind::kOutputs));
    std::vector<GlobalPart> freed;
    const std::lock_guard lock(mutex_);
    freed = global_.publish(*plan, std::move(segment));
  }
}

std::size_t Engine::load(const std::string& name, const std::string& path) {
  const Segment::Identity expected = identity_of(config_, SegmentKind::kOutputs);
  std::shared_ptr<const Segment> segment = agentspec::load(path, &expected);
  const std::size_t num_outputs = segment->outputs().size();
  {
    const std::lock_guard lock(mutex_);
    global_.add_segment(name, std::move(segment));
  }
  compact_later();
  return num_outputs;
}

void Engine::attach_corpus(const std::string& path, std::vector<std::string> names) {
  const Segment::Identity expected = identity_of(config_, SegmentKind::kCorpus);
  std::shared_ptr<const Segment> segment = agentspec::load(path, &expected);
  const std::lock_guard lock(mutex_);
  std::erase_if(corpora_, [&](const Corpus& corpus) { return corpus.path == path; });
  corpora_.push_back({path, next_corpus_++, std::move(segment), std::move(names)});
}

bool Engine::detach_corpus(const std::string& path) {
  const std::lock_guard lock(mutex_);
  return std::erase_if(corpora_, [&](const Corpus& corpus) { return corpus.path == path; }) > 0;
}

std::vector<float> Engine::weights() const {
  const std::lock_guard lock(mutex_);
  return {estimator_.weights().begin(), estimator_.weights().end()};
}

EngineStats Engine::stats() const {
  EngineStats stats;
  {
    const std::lock_guard lock(mutex_);
    stats.open_requests = requests_.size();
    stats.waiting_outputs = waiting_.size();
    stats.spared_tokens = spared_tokens_;
    stats.corpora = corpora_.size();
    stats.global = global_.stats();
    for (const auto& [request_id, request] : requests_) {
      stats.request_bytes += sizeof(Request) + request->output.capacity() * sizeof(Token) +
                             request->prompt_tail.capacity() * sizeof(Token) +
                             request->matches.capacity() * sizeof(KnownMatch);
      if (request->is_ready) stats.request_bytes += request->index->bytes();
    }
  }
  const std::lock_guard lock(conversations_mutex_);
  stats.conversation_bytes = conversations_.bytes();
  return stats;
}

void Engine::check_integrity() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [request_id, request] : requests_) {
    if (!request->is_ready) continue;
    request->index->check_integrity();
    const std::size_t known = request->index->digest().length();
    if (known != request->num_prompt_tokens + request->output.size()) {
      throw IntegrityError("request " + quoted(request_id) + ": its index has " + std::to_string(known) +
                           " tokens, its text " +
                           std::to_string(request->num_prompt_tokens + request->output.size()));
    }
  }
  global_.check_integrity();
}

}  // namespace agentspec
