#include "engine.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <random>
#include <utility>

#include "errors.h"
#include "index/output_id.h"

namespace agentspec {
namespace {

// Number of tokens that are indexed each time the mutex is held. This takes some microseconds, or a tenth of
// a millisecond if a vector has to grow.
constexpr std::size_t kSliceTokens = 64;
// An index is built with room for this many output tokens, so that it need not grow in the first steps.
constexpr std::size_t kReservedTokens = 512;
// Corpora are numbered apart from the parts of the global index.
constexpr std::uint64_t kFirstCorpus = 1ULL << 62;
// So are the outputs of open requests.
constexpr std::uint64_t kFirstShown = 1ULL << 61;

// The longest string whose continuations a draft can ask for.
std::int32_t max_counted_length(const EngineConfig& config) {
  return config.limits.max_pattern + config.max_draft_tokens;
}

std::string quoted(std::string_view request_id) { return "'" + std::string(request_id) + "'"; }

std::int64_t seconds_since_1970() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::uint32_t random_number() {
  std::random_device random;
  return random();
}

GlobalIndexConfig global_config(const EngineConfig& config) {
  GlobalIndexConfig result;
  result.budget_bytes = config.budget_bytes;
  // A growing part takes several times the memory of a sealed one, so it gets only a small share of the
  // budget.
  result.max_growing_tokens =
      std::clamp<std::size_t>(config.budget_bytes / 512, 64, config.max_growing_tokens);
  result.max_counted_length = max_counted_length(config);
  result.identity = config.identity(SegmentKind::kOutputs);
  return result;
}

}  // namespace

Engine::Engine(const EngineConfig& config)
    : config_(config),
      tenants_(config.weights, config.learning_rate),
      global_(global_config(config)),
      next_output_(random_number()),
      next_corpus_(kFirstCorpus),
      next_shown_(kFirstShown),
      conversations_(config.conversation_bytes),
      pool_(config.num_threads),
      slow_worker_(config.background),
      quick_worker_(config.background) {
  for (std::size_t thread = 0; thread < pool_.num_threads(); ++thread) {
    drafters_.emplace_back(config.limits);
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

void Engine::open(const std::string& request_id, std::span<const Token> prompt, const std::string& name,
                  const OpenOptions& options) {
  if (prompt.empty()) {
    throw TokenError("the prompt of request " + quoted(request_id) +
                     " must have at least one token, got none; a draft continues the last token");
  }
  check_tokens(prompt);
  check_tokens(options.prediction);
  auto request = std::make_shared<Request>();
  request->name = name;
  request->num_prompt_tokens = prompt.size();
  request->max_length = options.max_length;
  request->group = options.group;
  request->is_shown = options.is_shown;
  request->last_token = prompt.back();
  const std::span<const Token> tail = prompt.last(std::min(prompt.size(), config_.prompt_tail));
  request->prompt_tail.assign(tail.begin(), tail.end());
  std::vector<Token> copy(prompt.begin(), prompt.end());
  std::vector<Token> prediction(options.prediction.begin(), options.prediction.end());
  {
    const std::lock_guard lock(mutex_);
    check_not_open(request_id);
    request->tenant = tenants_.enter(name);
    // Without threads, the request is open only once its index is built.
    try {
      if (config_.background) requests_.emplace(request_id, request);
    } catch (const std::bad_alloc&) {
      leave(*request);
      throw;
    }
  }
  try {
    if (config_.background) {
      // If there is no memory to build the index, the request stays without one and gets no drafts.
      quick_worker_.post([this, request, copy = std::move(copy), prediction = std::move(prediction)] {
        build_prediction(*request, copy, prediction);
        build(request, copy);
      });
      return;
    }
    build_prediction(*request, copy, prediction);
    build(request, copy);
    const std::lock_guard lock(mutex_);
    check_not_open(request_id);
    requests_.emplace(request_id, request);
    meet_siblings(request);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (config_.background) requests_.erase(request_id);
    leave(*request);
    throw;
  }
}

// A request that ends gives back its tenant.
void Engine::leave(Request& request) {
  if (request.tenant) tenants_.leave(std::move(request.tenant));
}

// Indexes the text that a request's output may repeat. The end of the prompt comes first, so that it leads to
// the text's beginning.
void Engine::build_prediction(Request& request, std::span<const Token> prompt,
                              std::span<const Token> text) const {
  if (text.empty()) return;
  const auto longest = static_cast<std::size_t>(config_.limits.max_pattern);
  const std::span<const Token> before = prompt.last(std::min(prompt.size(), longest));
  auto automaton = std::make_unique<SuffixAutomaton>(max_counted_length(config_));
  automaton->reserve(before.size() + text.size() + 1);
  automaton->append(before);
  automaton->append(text);
  automaton->append(kEnd);
  request.prediction = std::move(automaton);
}

// Makes a request's index, from an earlier turn's index if there is one.
void Engine::build(const RequestPtr& request, const std::vector<Token>& prompt) {
  bool is_ready = false;
  bool shows = false;
  while (!is_ready) {
    std::uint64_t num_erasures;
    {
      const std::lock_guard lock(mutex_);
      if (!request->tenant) return;  // closed meanwhile
      num_erasures = request->tenant->num_erasures;
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
    const std::uint64_t prompt_hash = index->digest().hash();
    // The output may have grown meanwhile. Its new tokens are indexed in slices, the last slice under the
    // mutex.
    for (std::size_t num_indexed = 0; !is_ready;) {
      const std::lock_guard lock(mutex_);
      if (!request->tenant) return;
      // The reused index may contain text that was erased meanwhile.
      if (num_erasures != request->tenant->num_erasures && index->is_rewritten()) break;
      const std::size_t waiting = request->output.size() - num_indexed;
      const std::size_t slice = std::min(waiting, kSliceTokens);
      index->append(std::span(request->output).subspan(num_indexed, slice));
      num_indexed += slice;
      if (slice < waiting) continue;
      request->index = std::move(index);
      request->prompt_hash = prompt_hash;
      request->is_ready = is_ready = true;
      spared_tokens_ += num_known;
      if (!config_.background) continue;
      shows = !std::exchange(is_showing_, true);
      meet_siblings(request);
    }
  }
  if (shows) show_all();
}

void Engine::extend(const std::string& request_id, std::span<const Token> tokens) {
  check_tokens(tokens);
  if (tokens.empty()) {
    const std::lock_guard lock(mutex_);
    (void)find(request_id);
    return;
  }
  const std::lock_guard lock(mutex_);
  const RequestPtr& found = find(request_id);
  Request& request = *found;
  request.output.insert(request.output.end(), tokens.begin(), tokens.end());
  request.last_token = tokens.back();
  learn_judged(request);
  learn(request, request.drafted, tokens);
  request.drafted.clear();
  show_later(found);
  if (!request.is_ready) return;
  try {
    request.index->append(tokens);
  } catch (const std::bad_alloc&) {
    // The index is broken. The request goes on without one and gets no drafts.
    request.is_ready = false;
    request.index.reset();
  }
}

std::uint64_t Engine::close(const std::string& request_id, bool keep,
                            std::optional<std::size_t> num_output_tokens) {
  RequestPtr request;
  Output output;
  std::uint64_t num_erasures;
  std::uint64_t serial = 0;
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
      do {
        output.id = make_output_id(request_id, next_output_++);
      } while (waiting_.contains(output.id));
      serial = expect(request->name, output);
    }
    num_erasures = request->tenant->num_erasures;
    learn_judged(*request);
    request->is_open = false;
    requests_.erase(request_id);
  }
  try {
    quick_worker_.post([this, request, keep, num_erasures] { retire(request, keep, num_erasures); });
  } catch (const std::bad_alloc&) {
    // The request's index is not kept.
    const std::lock_guard lock(mutex_);
    leave(*request);
  }
  const std::uint64_t id = output.id;
  return id != 0 && post_output(request->name, std::move(output), serial) ? id : 0;
}

// Ends the life of a closed request. Its index is kept for the conversation's next turn, unless something of
// its namespace was erased after it was closed.
void Engine::retire(const RequestPtr& request, bool keep, std::uint64_t num_erasures) {
  std::list<Conversations::Entry> freed;
  std::unique_ptr<TextIndex> index;
  std::unique_ptr<Shown> shown;
  std::unique_ptr<SuffixAutomaton> prediction;
  const std::lock_guard conversations_lock(conversations_mutex_);
  {
    const std::lock_guard lock(mutex_);
    shown = std::move(request->shown);
    prediction = std::move(request->prediction);
    if (request->is_ready) index = std::move(request->index);
    request->is_ready = false;
    keep = keep && request->tenant && num_erasures == request->tenant->num_erasures;
    leave(*request);
  }
  if (index && keep) freed = conversations_.put(request->name, std::move(index));
}

bool Engine::add(const std::string& name, std::uint64_t output_id, std::span<const Token> tokens,
                 std::size_t num_prompt_tail, std::int64_t time) {
  check_tokens(tokens);
  if (num_prompt_tail > tokens.size()) {
    throw TokenError("num_prompt_tail must be in [0, " + std::to_string(tokens.size()) +
                     "], the number of tokens, got " + std::to_string(num_prompt_tail) +
                     "; count the tokens before the output");
  }
  if (num_prompt_tail == tokens.size()) return false;
  const std::size_t kept = std::min(num_prompt_tail, config_.prompt_tail);
  tokens = tokens.subspan(num_prompt_tail - kept);
  Output output{output_id, {tokens.begin(), tokens.end()}, static_cast<std::uint32_t>(kept), time};
  std::uint64_t serial;
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.contains(output_id)) return false;
    serial = expect(name, output);
  }
  return post_output(name, std::move(output), serial);
}

// Registers the output as waiting: from here on it can be erased. Returns its serial number.
std::uint64_t Engine::expect(const std::string& name, const Output& output) {
  waiting_.emplace(output.id, Waiting{name, output.time, next_waiting_});
  return next_waiting_++;
}

// Returns false if the output is not kept because memory is short.
bool Engine::post_output(const std::string& name, Output&& output, std::uint64_t serial) {
  const std::uint64_t id = output.id;
  try {
    quick_worker_.post(
        [this, name, output = std::move(output), serial] { add_output(name, output, serial); });
    return true;
  } catch (const std::bad_alloc&) {
    const std::lock_guard lock(mutex_);
    const auto found = waiting_.find(id);
    if (found != waiting_.end() && found->second.serial == serial) waiting_.erase(found);
    return false;
  }
}

void Engine::add_output(const std::string& name, const Output& output, std::uint64_t serial) {
  {
    const std::lock_guard adding(adding_mutex_);
    bool is_begun = false;
    for (bool is_complete = false; !is_complete;) {
      const std::lock_guard lock(mutex_);
      const auto found = waiting_.find(output.id);
      // The output was erased meanwhile, and what was added of it too.
      if (found == waiting_.end() || found->second.serial != serial) return;
      try {
        if (!is_begun) is_complete = !global_.begin(name, output);
        is_begun = true;
        if (!is_complete) is_complete = global_.add_slice(output, kSliceTokens);
      } catch (const std::bad_alloc&) {
        global_.give_up_adding();
        is_complete = true;
      }
      if (is_complete) waiting_.erase(found);
      is_crowded_ = global_.is_crowded();
    }
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

// Seals, merges and evicts until nothing is left to do.
void Engine::compact() {
  const std::lock_guard compacting(compacting_mutex_);
  for (;;) {
    std::optional<GlobalIndex::Plan> plan;
    std::vector<GlobalPart> freed;
    {
      const std::lock_guard lock(mutex_);
      is_crowded_ = global_.is_crowded();
      plan = global_.plan();
    }
    if (!plan) return;
    try {
      std::shared_ptr<const Segment> segment =
          GlobalIndex::seal(*plan, config_.identity(SegmentKind::kOutputs));
      const std::lock_guard lock(mutex_);
      freed = global_.publish(*plan, std::move(segment));
    } catch (const std::bad_alloc&) {
      const std::lock_guard lock(mutex_);
      // A part that is too large to be merged now stays as it is, unless the budget requires it to shrink.
      if (plan->num_dropped == 0) return;
      freed = global_.give_up(*plan);
    }
  }
}

std::size_t Engine::num_tokens(const std::string& request_id) const {
  const std::lock_guard lock(mutex_);
  return find(request_id)->length();
}

bool Engine::is_open(const std::string& request_id) const {
  const std::lock_guard lock(mutex_);
  return requests_.contains(request_id);
}

void Engine::flush() {
  quick_worker_.wait();
  slow_worker_.wait();
}

void Engine::wait_indexed() {
  quick_worker_.wait();
  if (is_crowded_) slow_worker_.wait();
}

std::vector<float> Engine::weights(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const std::span<const float> weights = tenants_.estimator(name).weights();
  return {weights.begin(), weights.end()};
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
                             request->judged.capacity() * sizeof(DraftNode) +
                             request->prompt_tail.capacity() * sizeof(Token) +
                             request->matches.capacity() * sizeof(KnownMatch);
      if (request->is_ready) stats.request_bytes += request->index->bytes();
      if (request->is_ready && request->prediction) stats.request_bytes += request->prediction->bytes();
      if (request->shown) stats.request_bytes += sizeof(Shown) + request->shown->automaton.bytes();
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
    if (request->prediction) request->prediction->check_integrity();
    const std::size_t known = request->index->digest().length();
    if (known != request->length()) {
      throw IntegrityError("request " + quoted(request_id) + ": its index has " + std::to_string(known) +
                           " tokens, its text " + std::to_string(request->length()));
    }
  }
  for (const auto& [request_id, request] : requests_) check_shown(*request);
  global_.check_integrity();
}

}  // namespace agentspec
