#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "drafting/tree_mask.h"
#include "drafting/tree_memory.h"
#include "engine.h"
#include "errors.h"
#include "index/output_id.h"

namespace agentspec::test {

inline EngineConfig small_engine_config() {
  EngineConfig config;
  config.num_token_ids = 100;
  config.limits = {.max_pattern = 16, .alpha = 4.0, .min_token_prob = 0.05, .chain = false};
  config.max_draft_tokens = 12;
  config.budget_bytes = 1 << 20;
  config.conversation_bytes = 1 << 20;
  config.prompt_tail = 4;
  config.max_growing_tokens = 64;
  config.max_siblings = 2;
  config.weights.assign(Estimator::kNumWeights, 0.0F);
  return config;
}

// Leads one engine through any sequence of operations, and checks all invariants after each. The choices come
// from outside: random numbers or a fuzzer's bytes. Each namespace writes tokens of its own, so a token shows
// where it was found.
class EngineLife {
 public:
  // Returns a number in [low, high].
  using Choose = std::function<std::int32_t(std::int32_t low, std::int32_t high)>;

  // Without threads, the same choices lead to the same operations.
  EngineLife(const Choose& choose, bool may_have_threads)
      : choose_(choose), config_(choose_config(choose, may_have_threads)), engine_(config_) {}

  // Throws std::logic_error or IntegrityError if an invariant does not hold.
  void step() {
    const std::int32_t action = choose_(0, 43);
    if (action < 6 || open_.empty()) {
      open();
    } else if (action < 14) {
      extend();
    } else if (action < 20) {
      close();
    } else if (action < 22) {
      erase_output();
    } else if (action == 22) {
      erase_namespace();
    } else if (action == 23 && choose_(0, 3) == 0) {
      engine_.clear();
      for (auto& outputs : outputs_) outputs.clear();
    } else if (action == 24) {
      engine_.flush();
      require(engine_.stats().waiting_outputs == 0, "nothing waits after flush()");
    } else if (action == 25) {
      trials();
    } else if (action < 29) {
      add();
    } else if (action == 29) {
      erase_request();
    } else if (action == 30) {
      expire();
    } else if (action == 31) {
      snapshot_and_load();
    } else if (action == 32) {
      find_batch();
    } else if (action < 38) {
      follow();
    } else if (action < 40) {
      engine_.learn(choose_batch().rows);
    } else {
      draft_batch();
    }
    draft();
    check();
  }

  void end() {
    engine_.flush();
    draft();
    check();
    if (config_.background) require(engine_.stats().waiting_outputs == 0, "nothing waits at the end");
  }

 private:
  static constexpr std::int32_t kNamespaces = 3;
  static constexpr std::int32_t kVocabulary = 33;
  static constexpr std::int32_t kLatest = 1000;  // earlier than the time of any closed output

  struct Text {
    std::int32_t space;
    std::vector<Token> tokens;
    std::size_t num_output;
    int serial;  // unique over all requests ever opened, because ids are used again
    std::size_t max_length;
    bool is_lost;           // its rows get no more drafts
    std::int64_t end = -1;  // as follow() last reported it
  };
  // Rows that were looked up once. Some of their requests were not open, or have been closed since.
  struct Batch {
    Engine::Rows rows;
    std::vector<std::string> request_ids;
    std::vector<int> serials;  // 0: was not open
  };
  struct Kept {
    std::uint64_t id;
    std::size_t num_tokens;
    std::string request_id;
    std::int64_t time;
  };

  // Memory for a draft of this many rows and nodes.
  struct RowsDraft {
    RowsDraft(std::size_t num_rows, std::size_t num_nodes) : ends(num_rows), rooms(num_rows) {
      batch.offsets.resize(num_rows + 1);
      for (auto* const values : {&batch.tokens, &batch.parents}) values->resize(num_nodes);
      batch.estimates.resize(num_nodes);
      batch.sources.resize(num_nodes);
      batch.match_lens.resize(num_rows);
      batch.scores.resize(num_rows);
      batch.outcomes.resize(num_rows);
    }

    [[nodiscard]] DraftSpans spans() {
      return {batch.offsets, batch.tokens,   batch.parents, batch.estimates, batch.sources, batch.match_lens,
              batch.scores,  batch.outcomes, rooms};
    }

    // Keeps only the first num_nodes nodes, which were written.
    void keep(std::size_t num_nodes) {
      batch.tokens.resize(num_nodes);
      batch.parents.resize(num_nodes);
      batch.estimates.resize(num_nodes);
      batch.sources.resize(num_nodes);
    }

    DraftBatch batch;
    std::vector<std::int64_t> ends;
    std::vector<std::int32_t> rooms;
  };

  static void require(bool holds, const char* what) {
    if (!holds) throw std::logic_error(std::string("it does not hold that ") + what);
  }

  static EngineConfig choose_config(const Choose& choose, bool may_have_threads) {
    EngineConfig config = small_engine_config();
    config.limits.max_pattern = choose(0, 3) == 0 ? 64 : choose(1, 12);
    config.limits.alpha = choose(1, 8) / 2.0;
    config.limits.min_token_prob = choose(0, 4) / 10.0;
    config.limits.chain = choose(0, 3) == 0;
    config.plain_rule = choose(0, 1) == 0;
    config.max_draft_tokens = choose(1, 20);
    const std::int32_t budget = choose(0, 3);
    config.budget_bytes = budget == 0 ? 4'000 : budget == 1 ? 30'000 : 1 << 20;
    config.conversation_bytes = choose(0, 2) == 0 ? 20'000 : 1 << 20;
    config.prompt_tail = static_cast<std::size_t>(choose(0, 8));
    config.max_siblings = static_cast<std::size_t>(choose(0, 3));
    if (may_have_threads) config.num_threads = static_cast<std::size_t>(choose(1, 2));
    config.background = may_have_threads && choose(0, 3) == 0;
    config.learning_rate = choose(0, 1) == 0 ? 0.0F : 0.3F;
    return config;
  }

  static std::string name_of(std::int32_t space) {
    return space == 0 ? "" : std::string(1, static_cast<char>('a' + space));
  }

  std::vector<Kept>& outputs_of(std::int32_t space) { return outputs_[static_cast<std::size_t>(space)]; }

  // Few different tokens make long matches; many make states with many continuations.
  std::vector<Token> choose_tokens(std::int32_t space, std::int32_t max_length) {
    const std::int32_t length = choose_(0, max_length);
    const std::int32_t vocabulary = choose_(0, 2) == 0 ? kVocabulary : 3;
    std::vector<Token> tokens;
    Token next = choose_(0, vocabulary - 1);
    for (std::int32_t i = 0; i < length; ++i) {
      tokens.push_back(space * kVocabulary + next);
      next = choose_(0, 3) == 0 ? choose_(0, vocabulary - 1) : (next * 2 + 1) % vocabulary;
    }
    return tokens;
  }

  std::string choose_open() {
    auto found = open_.begin();
    std::advance(found, choose_(0, static_cast<std::int32_t>(open_.size()) - 1));
    return found->first;
  }

  void open() {
    Text text{choose_(0, kNamespaces - 1), {}, 0, 0, 0, false};
    if (!ended_.empty() && choose_(0, 1) == 0) {
      // The next turn of a conversation, perhaps with its end rewritten, or somebody else's text.
      const Text& last =
          ended_[static_cast<std::size_t>(choose_(0, static_cast<std::int32_t>(ended_.size()) - 1))];
      text = last;
      text.num_output = 0;
      text.is_lost = false;
      text.end = -1;
      if (choose_(0, 2) == 0)
        text.tokens.resize(
            static_cast<std::size_t>(choose_(1, static_cast<std::int32_t>(text.tokens.size()))));
    }
    const std::vector<Token> more = choose_tokens(text.space, choose_(0, 3) == 0 ? 400 : 30);
    text.tokens.insert(text.tokens.end(), more.begin(), more.end());
    text.serial = ++num_opened_;
    std::string request_id = std::to_string(text.serial);
    if (!closed_.empty() && choose_(0, 2) == 0) request_id = closed_.back();
    if (text.tokens.empty()) {
      try {
        engine_.open(request_id, text.tokens, name_of(text.space));
      } catch (const TokenError&) {
        return;
      }
      require(false, "an empty prompt is refused");
    }
    text.max_length =
        choose_(0, 1) == 0 ? Engine::kNoLimit : text.tokens.size() + static_cast<std::size_t>(choose_(0, 40));
    const std::string group = choose_(0, 2) == 0 ? "group" : "";
    std::vector<Token> prediction;
    if (choose_(0, 3) == 0) prediction = choose_tokens(text.space, 60);
    engine_.open(request_id, text.tokens, name_of(text.space),
                 {text.max_length, group, choose_(0, 3) > 0, prediction});
    require(engine_.is_open(request_id), "an opened request is open");
    std::erase(closed_, request_id);
    open_.emplace(request_id, std::move(text));
  }

  void extend() {
    const std::string request_id = choose_open();
    Text& text = open_.at(request_id);
    std::vector<Token> tokens;
    const auto draft = drafted_.find(request_id);
    if (draft != drafted_.end() && choose_(0, 1) == 0) {
      tokens = draft->second;  // as if verification had accepted everything
    } else {
      tokens = choose_tokens(text.space, 30);
    }
    engine_.extend(request_id, tokens);
    text.tokens.insert(text.tokens.end(), tokens.begin(), tokens.end());
    text.num_output += tokens.size();
    require(engine_.num_tokens(request_id) == text.tokens.size(),
            "a request has the tokens that it was given");
  }

  void close() {
    const std::string request_id = choose_open();
    Text text = open_.at(request_id);
    open_.erase(request_id);
    drafted_.erase(request_id);
    const bool keep = choose_(0, 4) > 0;
    std::optional<std::size_t> cut;
    if (choose_(0, 3) == 0) cut = static_cast<std::size_t>(choose_(0, 20));
    const std::size_t num_kept = keep ? std::min(text.num_output, cut.value_or(text.num_output)) : 0;
    const std::uint64_t id = engine_.close(request_id, keep, cut);
    require((id != 0) == (num_kept > 0), "an output is kept if it is to be and there is one");
    if (id != 0) outputs_of(text.space).push_back({id, num_kept, request_id, kLatest});
    closed_.push_back(request_id);
    ended_.push_back(std::move(text));
    if (ended_.size() > 6) ended_.erase(ended_.begin());
  }

  Batch& find_batch() {
    Batch batch;
    for (const auto& [request_id, text] : open_) {
      if (choose_(0, 3) == 0) continue;
      batch.request_ids.push_back(request_id);
      if (choose_(0, 15) == 0) batch.request_ids.push_back(request_id);
    }
    if (choose_(0, 3) == 0) batch.request_ids.emplace_back("never");
    if (choose_(0, 3) == 0 && !closed_.empty()) batch.request_ids.push_back(closed_.front());
    for (const std::string& request_id : batch.request_ids) {
      const auto found = open_.find(request_id);
      batch.serials.push_back(found == open_.end() ? 0 : found->second.serial);
    }
    batch.rows =
        engine_.rows(std::vector<std::string_view>(batch.request_ids.begin(), batch.request_ids.end()));
    require(batch.rows.size() == batch.request_ids.size(), "each request of a batch has a row");
    batches_.push_back(std::move(batch));
    if (batches_.size() > 3) batches_.erase(batches_.begin());
    return batches_.back();
  }

  Batch& choose_batch() {
    if (batches_.empty() || choose_(0, 3) == 0) return find_batch();
    return batches_[static_cast<std::size_t>(choose_(0, static_cast<std::int32_t>(batches_.size()) - 1))];
  }

  // Null if it was not open at the look-up or was closed since, even if its id was opened again.
  Text* text_of(const Batch& batch, std::size_t row) {
    const auto found = open_.find(batch.request_ids[row]);
    return found != open_.end() && found->second.serial == batch.serials[row] ? &found->second : nullptr;
  }

  // Where a text ends in the KV cache after a step that accepted `count` tokens. May be wrong.
  std::int64_t choose_end(const Text* text, std::int64_t count) {
    const std::int64_t length = text == nullptr ? 7 : static_cast<std::int64_t>(text->tokens.size());
    return length + count - 1 + (choose_(0, 7) == 0 ? choose_(-3, 3) : 0);
  }

  // What a step accepts: part of it as drafted, sometimes with invalid tokens.
  void follow() {
    Batch& batch = choose_batch();
    const auto places = static_cast<std::size_t>(choose_(1, 8));
    std::vector<std::int64_t> accepted;
    std::vector<std::int64_t> ends;
    std::size_t num_lost = 0;
    for (std::size_t row = 0; row < batch.rows.size(); ++row) {
      Text* const text = text_of(batch, row);
      const auto draft = drafted_.find(batch.request_ids[row]);
      std::vector<Token> tokens;
      if (text != nullptr && draft != drafted_.end() && choose_(0, 1) == 0) tokens = draft->second;
      const std::vector<Token> more = choose_tokens(text == nullptr ? 0 : text->space, 8);
      tokens.insert(tokens.end(), more.begin(), more.end());
      tokens.resize(std::min(tokens.size(), places));
      const auto count = static_cast<std::int64_t>(tokens.size());
      ends.push_back(choose_end(text, count));
      // A number larger than the number of places is none that a device reports.
      const bool is_over = choose_(0, 15) == 0;
      const std::size_t first = accepted.size();
      accepted.push_back(count + (is_over ? 1000 : 0));
      if (tokens.empty() && !is_over) accepted.back() -= choose_(0, 1);
      accepted.insert(accepted.end(), tokens.begin(), tokens.end());
      accepted.resize(first + 1 + places, -5);
      const bool is_bad = !tokens.empty() && choose_(0, 31) == 0;
      if (is_bad) {
        const std::int64_t bad[] = {-1, config_.num_token_ids, std::int64_t{1} << 40};
        accepted[first + static_cast<std::size_t>(choose_(1, static_cast<std::int32_t>(tokens.size())))] =
            bad[choose_(0, 2)];
      }
      if (text == nullptr) continue;
      text->end = std::max<std::int64_t>(ends.back(), -1);
      const auto length = static_cast<std::int64_t>(text->tokens.size());
      if (tokens.empty() || is_over || text->end < 0 || text->end != length + count - 1) continue;
      if (is_bad) {
        text->is_lost = true;
        ++num_lost;
        continue;
      }
      text->tokens.insert(text->tokens.end(), tokens.begin(), tokens.end());
      text->num_output += tokens.size();
    }
    require(engine_.follow(batch.rows, accepted, 1 + places, ends, {}) == num_lost, "lost rows are told");
    for (std::size_t row = 0; row < batch.rows.size(); ++row) {
      const Text* const text = text_of(batch, row);
      if (text == nullptr) continue;
      require(engine_.num_tokens(batch.request_ids[row]) == text->tokens.size(),
              "a row grows by what was accepted");
    }
  }

  // A step that accepted nothing, after which most texts can be drafted for.
  void report(Batch& batch) {
    std::vector<std::int64_t> ends;
    for (std::size_t row = 0; row < batch.rows.size(); ++row) {
      Text* const text = text_of(batch, row);
      ends.push_back(choose_end(text, 0));
      if (text != nullptr) text->end = std::max<std::int64_t>(ends.back(), -1);
    }
    const std::vector<std::int64_t> nothing(batch.rows.size(), 0);
    require(engine_.follow(batch.rows, nothing, 1, ends, {}) == 0, "no row is lost by nothing");
  }

  void draft_batch() {
    Batch& batch = choose_batch();
    const std::size_t num_rows = batch.rows.size();
    if (choose_(0, 3) > 0) report(batch);
    const std::int32_t max_tokens = choose_(0, 24);
    RowsDraft made(num_rows, num_rows * (static_cast<std::size_t>(config_.max_draft_tokens) + 1));
    made.keep(engine_.draft_followed(batch.rows, {}, max_tokens, made.spans(), made.ends));
    std::vector<std::string> open_ids;
    std::vector<std::int32_t> limits;
    std::vector<std::size_t> open_rows;
    batch_ = made.batch;
    for (std::size_t row = 0; row < num_rows; ++row) {
      const auto first = static_cast<std::size_t>(batch_.offsets[row]);
      const auto outcome = static_cast<Outcome>(batch_.outcomes[row]);
      const Text* const text = text_of(batch, row);
      if (text == nullptr) {
        require(batch_.offsets[row + 1] - batch_.offsets[row] == 1 && batch_.tokens[first] == 0 &&
                    batch_.parents[first] == -1 && outcome == Outcome::kNotOpen,
                "a row that is not open has a root of no token");
        require(made.rooms[row] == 0, "a row that is not open has no room");
        continue;
      }
      const std::size_t length = text->tokens.size();
      const bool is_text = text->end >= 0 && text->end + 1 == static_cast<std::int64_t>(length);
      const std::size_t left =
          text->is_lost || text->max_length <= length ? 0 : text->max_length - length - 1;
      const auto most = static_cast<std::size_t>(std::min(max_tokens, config_.max_draft_tokens));
      const auto limit = static_cast<std::int32_t>(is_text ? std::min(left, most) : 0);
      require(made.rooms[row] == limit, "a text grows to its limit, the bonus token included");
      require(made.ends[row] == text->end, "the end that was reported is told");
      require((outcome == Outcome::kOtherText) == !is_text, "a text that ends elsewhere is told");
      require(is_text || batch_.offsets[row + 1] - batch_.offsets[row] == 1,
              "a text that ends elsewhere is not drafted from");
      check_row(row, batch.request_ids[row], limit);
      open_rows.push_back(row);
      open_ids.push_back(batch.request_ids[row]);
      limits.push_back(limit);
    }
    // In the background an index may have become ready meanwhile.
    if (config_.background || open_ids.empty()) return;
    engine_.draft(open_ids, limits, batch_);
    for (std::size_t i = 0; i < open_ids.size(); ++i) {
      require(nodes_of(batch_, i) == nodes_of(made.batch, open_rows[i]),
              "a row is drafted for as a request that is named");
    }
  }

  static std::vector<std::pair<Token, float>> nodes_of(const DraftBatch& batch, std::size_t row) {
    std::vector<std::pair<Token, float>> nodes;
    for (auto i = static_cast<std::size_t>(batch.offsets[row]);
         i < static_cast<std::size_t>(batch.offsets[row + 1]); ++i) {
      nodes.emplace_back(batch.tokens[i], batch.estimates[i]);
    }
    return nodes;
  }

  void erase_output() {
    auto& outputs = outputs_of(choose_(0, kNamespaces - 1));
    if (outputs.empty()) {
      require(!engine_.erase_output(12345), "an unknown output is not there");
      return;
    }
    const auto output = outputs.begin() + choose_(0, static_cast<std::int32_t>(outputs.size()) - 1);
    if (!engine_.erase_output(output->id)) ++num_not_there_;
    require(!engine_.erase_output(output->id), "an erased output is gone");
    outputs.erase(output);
  }

  void add() {
    const std::int32_t space = choose_(0, kNamespaces - 1);
    const std::vector<Token> tokens = choose_tokens(space, choose_(0, 3) == 0 ? 200 : 30);
    const auto tail = static_cast<std::size_t>(choose_(0, static_cast<std::int32_t>(tokens.size())));
    const std::string request_id = "elsewhere-" + std::to_string(choose_(0, 9));
    const std::uint64_t id = make_output_id(request_id, static_cast<std::uint32_t>(++num_added_));
    const std::int64_t time = choose_(1, kLatest - 1);
    const bool is_added = engine_.add(name_of(space), id, tokens, tail, time);
    require(is_added == (tail < tokens.size()), "an output is added if there is one");
    if (is_added) outputs_of(space).push_back({id, tokens.size() - tail, request_id, time});
  }

  void erase_request() {
    const std::int32_t space = choose_(0, kNamespaces - 1);
    auto& outputs = outputs_of(space);
    std::string request_id = "unknown";
    if (!outputs.empty()) {
      request_id =
          outputs[static_cast<std::size_t>(choose_(0, static_cast<std::int32_t>(outputs.size()) - 1))]
              .request_id;
    }
    const std::size_t expected =
        std::erase_if(outputs, [&](const Kept& output) { return output.request_id == request_id; });
    expect_erased(engine_.erase_request(name_of(space), request_id), expected);
    require(engine_.erase_request(name_of(space), request_id) == 0, "an erased request is gone");
  }

  void expire() {
    const std::int32_t space = choose_(0, kNamespaces - 1);
    const std::int64_t before = choose_(0, 2) == 0 ? choose_(1, kLatest) : choose_(1, kLatest / 4);
    const std::size_t expected =
        std::erase_if(outputs_of(space), [=](const Kept& output) { return output.time < before; });
    expect_erased(engine_.expire(name_of(space), before), expected);
    require(engine_.expire(name_of(space), before) == 0, "what has expired is gone");
  }

  void expect_erased(std::size_t num_erased, std::size_t expected) {
    require(num_erased <= expected, "no more is erased than was to be");
    num_not_there_ += static_cast<int>(expected - num_erased);
  }

  // A snapshot has exactly the outputs that are there, and its segments can replace them.
  void snapshot_and_load() {
    const std::int32_t space = choose_(0, kNamespaces - 1);
    auto& outputs = outputs_of(space);
    const GlobalSnapshot snapshot = engine_.snapshot(name_of(space));
    std::vector<std::uint64_t> ids = snapshot.unsealed;
    std::vector<std::uint64_t> sealed;
    std::vector<std::span<const std::byte>> blobs;
    for (const auto& segment : snapshot.segments) {
      blobs.push_back(segment->blob());
      for (const OutputRecord& output : segment->outputs()) sealed.push_back(output.id);
    }
    ids.insert(ids.end(), sealed.begin(), sealed.end());
    std::sort(ids.begin(), ids.end());
    require(std::adjacent_find(ids.begin(), ids.end()) == ids.end(), "a snapshot has each output once");
    require(ids.size() <= outputs.size(), "a snapshot has no more than is there");
    if (engine_.stats().global.evicted_outputs == 0) {
      require(ids.size() == outputs.size(), "a snapshot has all that is there");
    }
    const auto has = [](const std::vector<std::uint64_t>& all, std::uint64_t id) {
      return std::find(all.begin(), all.end(), id) != all.end();
    };
    for (const std::uint64_t id : ids) {
      require(
          std::any_of(outputs.begin(), outputs.end(), [=](const Kept& output) { return output.id == id; }),
          "a snapshot has what was kept");
    }
    if (sealed.empty() || choose_(0, 1) == 0) return;
    (void)engine_.erase_namespace(name_of(space));
    std::vector<std::uint64_t> known;
    for (const std::uint64_t id : sealed) {
      if (choose_(0, 7) == 0) known.push_back(id);
    }
    blobs.push_back(blobs.front().first(blobs.front().size() - 1));
    try {
      (void)engine_.load_segments(name_of(space), blobs, known);
      require(false, "a truncated segment is refused");
    } catch (const SegmentError&) {
    }
    require(engine_.snapshot(name_of(space)).segments.empty(), "all segments are loaded or none");
    blobs.pop_back();
    const std::vector<std::uint64_t> taken = engine_.load_segments(name_of(space), blobs, known);
    require(taken.size() + known.size() == sealed.size(), "what is not known is taken");
    std::erase_if(outputs, [&](const Kept& output) { return !has(taken, output.id); });
    require(outputs.size() == taken.size(), "what is taken was there");
  }

  void erase_namespace() {
    const std::int32_t space = choose_(0, kNamespaces - 1);
    (void)engine_.erase_namespace(name_of(space));
    require(!engine_.erase_namespace(name_of(space)), "an erased namespace is gone");
    outputs_of(space).clear();
  }

  void trials() {
    const std::string request_id = choose_open();
    std::vector<Drafter::Trial> rows;
    engine_.trials(request_id, choose_tokens(open_.at(request_id).space, 10), rows);
    for (const Drafter::Trial& row : rows) {
      require(row.estimate >= 0.0F && row.estimate <= 1.0F, "the estimate of a trial is a probability");
    }
  }

  void draft() {
    std::vector<std::string> request_ids;
    std::vector<std::int32_t> limits;
    for (const auto& [request_id, text] : open_) {
      if (choose_(0, 3) > 0) request_ids.push_back(request_id);
    }
    if (!request_ids.empty() && choose_(0, 7) == 0) request_ids.push_back(request_ids.front());
    if (choose_(0, 1) == 0) {
      for (std::size_t i = 0; i < request_ids.size(); ++i) limits.push_back(choose_(0, 14));
    }
    engine_.draft(request_ids, limits, batch_);
    const auto width = static_cast<std::size_t>(config_.max_draft_tokens) + 1;
    // Throws if a row is not a tree.
    require(batch_.offsets.size() == request_ids.size() + 1, "each request has a row");
    TreeMemory memory(request_ids.size(), width);
    build_tree_arrays(batch_.offsets, batch_.tokens, batch_.parents, {}, width, memory.arrays());
    for (std::size_t row = 0; row < request_ids.size(); ++row) {
      check_row(row, request_ids[row], limits.empty() ? config_.max_draft_tokens : limits[row]);
    }
  }

  void check_row(std::size_t row, const std::string& request_id, std::int32_t limit) {
    const Text& text = open_.at(request_id);
    const auto first = static_cast<std::size_t>(batch_.offsets[row]);
    const auto end = static_cast<std::size_t>(batch_.offsets[row + 1]);
    require(batch_.tokens[first] == text.tokens.back(), "the root is the last token");
    require(end - first <= static_cast<std::size_t>(limit) + 1, "a draft has no more nodes than it may");
    require((end - first > 1) == (batch_.match_lens[row] > 0), "a draft continues a pattern");
    require(batch_.match_lens[row] <= config_.limits.max_pattern, "a pattern is no longer than it may be");
    float sum = 0.0F;
    std::vector<std::pair<std::int32_t, Token>> edges;
    std::vector<Token>& path = drafted_[request_id];
    path.clear();
    std::int32_t tip = 0;
    for (std::size_t i = first + 1; i < end; ++i) {
      const auto parent = first + static_cast<std::size_t>(batch_.parents[i]);
      require(batch_.tokens[i] / kVocabulary == text.space, "a draft has no token of another namespace");
      require(batch_.estimates[i] <= batch_.estimates[parent] && batch_.estimates[i] > 0.0F,
              "a node is no likelier than its parent");
      require(static_cast<double>(batch_.estimates[i]) >= config_.limits.min_token_prob * 0.9999,
              "a node is likely enough");
      require(batch_.estimates[i] <= batch_.estimates[i - 1], "nodes come best first");
      edges.emplace_back(batch_.parents[i], batch_.tokens[i]);
      sum += batch_.estimates[i];
      if (batch_.parents[i] != tip) continue;
      tip = static_cast<std::int32_t>(i - first);
      path.push_back(batch_.tokens[i]);
    }
    std::sort(edges.begin(), edges.end());
    require(std::adjacent_find(edges.begin(), edges.end()) == edges.end(), "no node has two children alike");
    if (config_.limits.chain) {
      require(
          std::adjacent_find(edges.begin(), edges.end(),
                             [](const auto& a, const auto& b) { return a.first == b.first; }) == edges.end(),
          "a chain has no branches");
    }
    require(std::abs(sum - batch_.scores[row]) < 1e-3F, "the score is the sum of the estimates");
  }

  void check() {
    engine_.check_integrity();
    const EngineStats stats = engine_.stats();
    require(stats.open_requests == open_.size(), "the open requests are counted");
    require(stats.conversation_bytes <= config_.conversation_bytes, "the conversations keep their budget");
    if (config_.background) return;
    require(stats.waiting_outputs == 0, "no output waits without threads");
    require(stats.global.bytes <= config_.budget_bytes, "the global index keeps its budget");
    std::size_t num_outputs = 0;
    std::size_t num_tokens = 0;
    for (const auto& outputs : outputs_) {
      num_outputs += outputs.size();
      for (const Kept& output : outputs) num_tokens += output.num_tokens;
    }
    require(stats.global.outputs <= num_outputs, "no output is there twice");
    if (stats.global.evicted_outputs > 0) return;
    require(num_not_there_ == 0, "an output that was kept can be erased");
    require(stats.global.outputs == num_outputs, "all outputs are there");
    require(stats.global.output_tokens == num_tokens, "the tokens of all outputs are there");
  }

  Choose choose_;
  EngineConfig config_;
  std::vector<Batch> batches_;  // they outlive the engine, as a caller's may
  Engine engine_;
  std::map<std::string, Text> open_;
  std::map<std::string, std::vector<Token>> drafted_;  // for each request, a path down its last draft
  std::vector<Text> ended_;
  std::vector<std::string> closed_;  // ids that are free again
  std::array<std::vector<Kept>, kNamespaces> outputs_;
  DraftBatch batch_;
  int num_opened_ = 0;
  int num_added_ = 0;
  int num_not_there_ = 0;
};

}  // namespace agentspec::test
