// Several threads use one engine at once, and the engine has threads of its own. Meant to run under
// ThreadSanitizer. The test itself checks that nothing is lost and that no namespace gets the tokens of
// another.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine.h"
#include "engine_life.h"
#include "errors.h"
#include "index/output_id.h"

namespace {

using namespace agentspec;
using namespace agentspec::test;

constexpr int kThreads = 4;
constexpr Token kVocabulary = 20;  // of each namespace

// Two threads share a namespace, whose number is the thread's number modulo two.
std::string name_of(int thread) { return std::string(1, static_cast<char>('a' + thread % 2)); }

Text draw_own(Random& random, int thread, std::int32_t max_length) {
  Text text = draw_text(random, draw(random, 1, max_length), 6);
  for (Token& token : text) token += thread % 2 * kVocabulary;
  return text;
}

std::atomic<int> num_foreign = 0;
std::atomic<int> num_wrong = 0;
std::atomic<std::uint64_t> num_kept = 0;
std::atomic<std::uint64_t> num_gone = 0;  // erased, or dropped with all others

void check_batch(const DraftBatch& batch, int thread) {
  for (const Token token : batch.tokens) {
    if (token / kVocabulary != thread % 2) ++num_foreign;
  }
}

// The work of each thread: whole lives of requests, most of them in batches.
void lead(Engine& engine, int thread, int num_rounds) {
  Random random(static_cast<std::uint32_t>(thread));
  DraftBatch batch;
  std::vector<std::uint64_t> ids;
  Text history = draw_own(random, thread, 20);
  for (int round = 0; round < num_rounds; ++round) {
    std::vector<std::string> names;
    for (int i = 0; i < 6; ++i) {
      names.push_back(std::to_string(thread) + "-" + std::to_string(round) + "-" + std::to_string(i));
      // The first of them continues the conversation.
      engine.open(names.back(), i == 0 ? history : draw_own(random, thread, 60), name_of(thread));
    }
    for (int step = 0; step < 3; ++step) {
      engine.draft(names, {}, batch);
      check_batch(batch, thread);
      for (std::size_t i = 0; i < names.size(); ++i) {
        const auto first = batch.tokens.begin() + batch.offsets[i];
        const Text tokens = draw(random, 0, 1) == 0
                                ? draw_own(random, thread, 12)
                                : Text(first, batch.tokens.begin() + batch.offsets[i + 1]);
        engine.extend(names[i], tokens);
        if (i == 0) history.insert(history.end(), tokens.begin(), tokens.end());
      }
    }
    for (const std::string& name : names) {
      if (!engine.is_open(name)) ++num_wrong;
      const std::uint64_t id = engine.close(name, draw(random, 0, 9) > 0, std::nullopt);
      if (id == 0) continue;
      ids.push_back(id);
      ++num_kept;
    }
    if (draw(random, 0, 3) == 0) {
      const Text tokens = draw_own(random, thread, 60);
      const std::string request_id = std::to_string(thread) + "-elsewhere";
      const std::uint64_t id = make_output_id(request_id, static_cast<std::uint32_t>(round));
      if (engine.add(name_of(thread), id, tokens, tokens.size() / 4, 1)) ++num_kept;
      if (draw(random, 0, 2) == 0) num_gone += engine.erase_request(name_of(thread), request_id);
    }
    if (draw(random, 0, 7) == 0) num_gone += engine.expire(name_of(thread), 2);
    if (draw(random, 0, 3) == 0) {
      const auto which = static_cast<std::size_t>(draw(random, 0, static_cast<std::int32_t>(ids.size()) - 1));
      if (engine.erase_output(ids[which])) ++num_gone;
    }
    if (history.size() > 500) history = draw_own(random, thread, 20);
  }
}

// A snapshot contains each output once, even while parts are being moved.
void check_snapshot(Engine& engine, bool may_load) {
  const GlobalSnapshot snapshot = engine.snapshot("b");
  std::vector<std::uint64_t> ids = snapshot.unsealed;
  std::vector<std::span<const std::byte>> blobs;
  for (const auto& segment : snapshot.segments) {
    if (segment->name().size() != 32) ++num_wrong;
    blobs.push_back(segment->blob());
    for (const OutputRecord& output : segment->outputs()) ids.push_back(output.id);
  }
  std::sort(ids.begin(), ids.end());
  if (std::adjacent_find(ids.begin(), ids.end()) != ids.end()) ++num_wrong;
  if (may_load) (void)engine.load_segments("b", blobs, ids);  // all are known
}

// What a server does besides: it inspects, waits, and sometimes drops everything.
void look(Engine& engine, const std::atomic<bool>& stops, bool may_load) {
  for (int round = 0; !stops; ++round) {
    const EngineStats stats = engine.stats();
    if (stats.open_requests > 6 * kThreads) ++num_wrong;
    (void)engine.weights("a");
    if (round % 3 == 0) engine.check_integrity();
    if (round % 5 == 0) engine.flush();
    if (round % 11 == 0) (void)engine.detach_corpus("none");
    if (round % 4 == 0) check_snapshot(engine, may_load);
    for (const NamespaceStats& one : engine.namespaces())
      num_wrong += one.name == "a" || one.name == "b" ? 0 : 1;
    std::this_thread::yield();
  }
}

void run_threads(EngineConfig config, bool with_deletions, int num_rounds) {
  config.learning_rate = 0.1F;
  num_kept = num_gone = 0;
  Engine engine(config);
  std::atomic<bool> stops = false;
  std::vector<std::thread> threads;
  std::thread looker([&] { look(engine, stops, with_deletions); });
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] { lead(engine, thread, num_rounds); });
  }
  if (with_deletions) {
    for (int round = 0; round < 5; ++round) {
      engine.flush();
      if (round % 2 == 0) {
        engine.clear();
      } else {
        (void)engine.erase_namespace("b");
      }
    }
  }
  for (std::thread& thread : threads) thread.join();
  stops = true;
  looker.join();
  engine.flush();
  engine.check_integrity();

  const EngineStats stats = engine.stats();
  CHECK(num_foreign == 0);
  CHECK(num_wrong == 0);
  CHECK(stats.open_requests == 0);
  CHECK(stats.waiting_outputs == 0);
  CHECK(stats.global.bytes <= config.budget_bytes);
  if (!with_deletions) CHECK(stats.global.outputs + stats.global.evicted_outputs + num_gone == num_kept);
}

void test_threads_share_an_engine() {
  for (const bool background : {true, false}) {
    for (const bool plain_rule : {false, true}) {
      EngineConfig config = small_engine_config();
      config.num_token_ids = 2 * kVocabulary;
      config.background = background;
      config.plain_rule = plain_rule;
      config.num_threads = 2;
      run_threads(config, false, 25);
      config.budget_bytes = 30'000;
      run_threads(config, true, 25);
    }
  }
}

// Only one thread opens the requests of an id, and only one closes them.
void test_threads_race_for_one_id() {
  for (const bool background : {true, false}) {
    EngineConfig config = small_engine_config();
    config.background = background;
    Engine engine(config);
    for (int round = 0; round < 30; ++round) {
      std::atomic<int> num_opened = 0;
      std::atomic<int> num_closed = 0;
      std::array<std::thread, kThreads> threads;
      for (std::thread& thread : threads) {
        thread = std::thread([&] {
          try {
            engine.open("a", Text(200, 3), "");
            ++num_opened;
          } catch (const DuplicateRequestError&) {
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      for (std::thread& thread : threads) {
        thread = std::thread([&] {
          try {
            (void)engine.close("a", true, std::nullopt);
            ++num_closed;
          } catch (const UnknownRequestError&) {
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      CHECK(num_opened == 1);
      CHECK(num_closed == 1);
    }
  }
}

// The engine ends while its threads are working.
void test_an_engine_ends_at_work() {
  Random random(9);
  for (int round = 0; round < 20; ++round) {
    EngineConfig config = small_engine_config();
    config.background = true;
    Engine engine(config);
    for (int i = 0; i < 30; ++i) {
      engine.open("a", draw_text(random, 100, 5), "");
      engine.extend("a", draw_text(random, 100, 5));
      (void)engine.close("a", true, std::nullopt);
    }
    engine.open("b", draw_text(random, 3000, 5), "");
    CHECK(engine.is_open("b"));
  }
}

// A device that fails may report tokens that are none, also while a deletion has a request's index built
// again.
void test_a_wrong_token_comes_while_an_index_is_built_again() {
  EngineConfig config = small_engine_config();
  config.background = true;
  config.conversation_bytes = 16 << 20;
  Engine engine(config);
  Random random(4);
  Text history = draw_text(random, 600, 90);
  engine.open("earlier", history, "");
  (void)engine.close("earlier", true, std::nullopt);
  history.resize(500);
  history.insert(history.end(), 100, 95);
  engine.open("rewritten", history, "");
  engine.wait_indexed();
  CHECK(engine.stats().spared_tokens > 0);
  // The thread that builds is busy meanwhile.
  engine.open("long", draw_text(random, 200'000, 90), "");
  engine.clear();
  const std::vector<std::string_view> ids = {"rewritten"};
  const std::vector<std::int64_t> accepted = {1, 100};
  const std::vector<std::int64_t> ends = {static_cast<std::int64_t>(history.size())};
  CHECK(engine.follow(engine.rows(ids), accepted, 2, ends, {}) == 1);
  engine.flush();
  engine.check_integrity();
}

}  // namespace

int main() {
  return run({test_threads_share_an_engine, test_threads_race_for_one_id, test_an_engine_ends_at_work,
              test_a_wrong_token_comes_while_an_index_is_built_again});
}
