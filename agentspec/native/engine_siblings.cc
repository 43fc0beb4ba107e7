// Drafts from open requests with the same prompt or of the same group: samples, votes, trials of one task.

#include <algorithm>
#include <new>
#include <utility>

#include "engine.h"
#include "errors.h"

namespace agentspec {
namespace {

// Number of tokens that siblings get to see each time the mutex is held.
constexpr std::size_t kShownAtOnce = 64;
// Longest pattern that is looked up in what siblings have written. They grow in every step, and each pattern
// is then matched again.
constexpr std::int32_t kPattern = 16;

}  // namespace

// Whether `a` and `b` are siblings. That two prompts begin alike tells little: most share a system prompt.
bool Engine::are_siblings(const Request& a, const Request& b) {
  if (a.tenant != b.tenant || a.group != b.group) return false;
  return !a.group.empty() || (a.prompt_hash == b.prompt_hash && a.num_prompt_tokens == b.num_prompt_tokens);
}

// Makes a request whose index is ready the sibling of others, and others its siblings.
void Engine::meet_siblings(const RequestPtr& request) {
  if (config_.max_siblings == 0 || config_.plain_rule) return;
  for (const auto& [id, other] : requests_) {
    if (other == request || !other->is_ready || !are_siblings(*request, *other)) continue;
    add_sibling(*request, other);
    add_sibling(*other, request);
  }
}

void Engine::add_sibling(Request& request, const RequestPtr& other) {
  if (!other->is_shown) return;
  std::vector<std::weak_ptr<Request>>& siblings = request.siblings;
  std::erase_if(siblings, [&](const std::weak_ptr<Request>& sibling) {
    const RequestPtr found = sibling.lock();
    return !found || !found->is_open || found == other;
  });
  if (siblings.size() >= config_.max_siblings) return;
  try {
    if (!other->shown) {
      auto shown = std::make_unique<Shown>(config_.limits.max_pattern + config_.max_draft_tokens);
      shown->automaton.append(other->prompt_tail);
      shown->id = next_shown_++;
      other->shown = std::move(shown);
      show_later(other);
    }
    siblings.push_back(other);
  } catch (const std::bad_alloc&) {
    // It drafts without this sibling.
  }
}

// Lets siblings see what a request's output has more than they know of. Without threads, they see it at once.
void Engine::show_later(const RequestPtr& request) {
  Shown* const shown = request->shown.get();
  if (shown == nullptr || shown->is_waiting || shown->num_tokens == request->output.size()) return;
  if (!config_.background) {
    show(*request, kNoLimit);
    return;
  }
  try {
    to_show_.push_back(request);
    shown->is_waiting = true;
    if (is_showing_) return;
    quick_worker_.post([this] { show_all(); });
    is_showing_ = true;
  } catch (const std::bad_alloc&) {
    // The next output tokens will ask for it again.
    if (!to_show_.empty() && shown->is_waiting) {
      to_show_.pop_back();
      shown->is_waiting = false;
    }
  }
}

// Shows at most `max_tokens` further tokens; returns whether siblings see the whole output.
bool Engine::show(Request& request, std::size_t max_tokens) {
  Shown& shown = *request.shown;
  const std::size_t end = request.output.size() - shown.num_tokens > max_tokens
                              ? shown.num_tokens + max_tokens
                              : request.output.size();
  try {
    shown.automaton.append(std::span(request.output).subspan(shown.num_tokens, end - shown.num_tokens));
  } catch (const std::bad_alloc&) {
    // Its index is broken, so siblings see the request no more.
    request.shown.reset();
    request.is_shown = false;
    return true;
  }
  shown.num_tokens = end;
  return end == request.output.size();
}

void Engine::show_all() {
  for (;;) {
    const std::lock_guard lock(mutex_);
    for (std::size_t left = kShownAtOnce; left > 0;) {
      if (to_show_.empty()) {
        is_showing_ = false;
        return;
      }
      Request& request = *to_show_.back();
      if (!request.is_open || !request.shown) {
        to_show_.pop_back();
        continue;
      }
      const std::size_t before = request.shown->num_tokens;
      request.shown->is_waiting = false;
      if (show(request, left)) {
        const std::size_t added = request.shown ? request.shown->num_tokens - before : left;
        left -= std::min(left, added);
        to_show_.pop_back();
      } else {
        request.shown->is_waiting = true;
        left = 0;
      }
    }
  }
}

// Matches a request's text in what its siblings have written. Returns whether they have written anything.
bool Engine::match_siblings(Request& request, std::size_t& known) const {
  bool has_text = false;
  for (const std::weak_ptr<Request>& sibling : request.siblings) {
    const RequestPtr other = sibling.lock();
    if (!other || !other->is_open || !other->shown || other->shown->num_tokens == 0) continue;
    has_text = true;
    match_part(request, {&other->shown->automaton, nullptr, 0, {}}, other->shown->id, known, request.global,
               std::min(config_.limits.max_pattern, kPattern));
  }
  return has_text;
}

void Engine::check_shown(const Request& request) {
  if (!request.shown) return;
  request.shown->automaton.check_integrity();
  std::vector<Token> text = request.prompt_tail;
  text.insert(text.end(), request.output.begin(),
              request.output.begin() + static_cast<std::ptrdiff_t>(request.shown->num_tokens));
  if (text != request.shown->automaton.text())
    throw IntegrityError("siblings see another text than a request has");
}

}  // namespace agentspec
