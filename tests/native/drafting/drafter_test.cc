// Tests both drafters on sealed text with deleted outputs: they must not draft from a deleted output on any
// path. The other properties of drafts are tested in tests/agentspec.

#include "drafting/drafter.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "check.h"
#include "drafting/plain_drafter.h"
#include "index/index_part.h"
#include "index/suffix_array/suffix_array.h"

namespace {

using namespace agentspec;
using namespace agentspec::test;

constexpr Token kShared = 10;  // tokens [0, kShared) are in all outputs, every other token in only one

// Outputs with a common vocabulary, and occasional tokens that occur in only one output.
struct Sealed {
  Sealed(Random& random, int num_outputs, std::int32_t length, std::int32_t num_shared) {
    Text text;
    std::vector<OutputRecord> records;
    for (int number = 0; number < num_outputs; ++number) {
      const auto begin = static_cast<std::uint32_t>(text.size());
      records.push_back(
          {.id = static_cast<std::uint64_t>(number) + 1, .begin = begin, .prompt_tail = 0, .time = 0});
      for (std::int32_t i = draw(random, 1, length); i > 0; --i) {
        text.push_back(draw(random, 0, 3) == 0 ? kShared + number : draw(random, 0, num_shared - 1));
      }
      text.push_back(kEnd);
      const auto end = static_cast<std::uint32_t>(text.size());
      if (draw(random, 0, 1) == 0) {
        dead.emplace_back(begin, end);
        dead_tokens.insert(kShared + number);
      }
    }
    segment = Segment::build(text, records,
                             {.num_token_ids = 10'000, .tokenizer = {}, .kind = SegmentKind::kOutputs});
  }

  std::shared_ptr<const Segment> segment;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> dead;
  std::set<Token> dead_tokens;
};

// Checks what each drafter drafts after the text, from the segment alone.
void check_drafts(const Sealed& sealed, const Text& text, double min_token_prob, std::int32_t max_pattern,
                  std::int64_t& num_drafted) {
  const DraftLimits limits{
      .max_pattern = max_pattern, .alpha = 100.0, .min_token_prob = min_token_prob, .chain = false};
  const std::vector<float> weights(Estimator::kNumWeights, 0.5F);
  const Estimator estimator(weights, 0.0F);
  SuffixAutomaton request(max_pattern + 64);
  request.append(9'999);
  PartMatch match;
  match.part = {.automaton = nullptr, .segment = sealed.segment.get(), .age_of_end = 0, .dead = sealed.dead};
  match.context = sealed.segment->locate(text, max_pattern);
  if (match.context.length == 0) return;
  const DraftSources sources{
      .estimator = &estimator, .request = &request, .global = {&match, 1}, .corpora = {}};
  Drafter calibrated(limits);
  PlainDrafter plain(limits);
  for (const Draft* const draft : {&calibrated.draft(sources, 40), &plain.draft(sources, 40)}) {
    for (const DraftNode& node : draft->nodes) {
      CHECK(node.token != kEnd);
      CHECK(!sealed.dead_tokens.contains(node.token));
      ++num_drafted;
    }
  }
}

void test_nothing_deleted_is_drafted() {
  Random random(1);
  std::int64_t num_drafted = 0;
  for (int round = 0; round < 60; ++round) {
    // From a few occurrences of each string to thousands.
    const std::int32_t num_shared = draw(random, 1, kShared);
    const Sealed sealed(random, draw(random, 1, 120), round % 3 == 0 ? 200 : 20, num_shared);
    for (int i = 0; i < 20; ++i) {
      // Part of the text itself, deleted or not, or random tokens.
      const std::span<const Token> tokens = sealed.segment->tokens();
      const auto begin =
          static_cast<std::size_t>(draw(random, 0, static_cast<std::int32_t>(tokens.size()) - 1));
      Text text(tokens.begin() + static_cast<std::ptrdiff_t>(begin), tokens.end());
      text.resize(std::min(text.size(), static_cast<std::size_t>(draw(random, 1, 20))));
      text.erase(std::remove(text.begin(), text.end(), kEnd), text.end());
      text.push_back(draw(random, 0, num_shared - 1));
      check_drafts(sealed, text, draw(random, 0, 2) * 0.05, draw(random, 0, 1) == 0 ? 2 : 64, num_drafted);
    }
  }
  CHECK(num_drafted > 10'000);
}

void test_what_is_all_deleted_drafts_nothing() {
  Random random(2);
  for (const int num_outputs : {1, 40, 3000}) {
    Sealed sealed(random, num_outputs, 6, 2);
    sealed.dead.clear();
    const auto outputs = sealed.segment->outputs();
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const auto end = i + 1 < outputs.size() ? outputs[i + 1].begin : sealed.segment->tokens().size();
      sealed.dead.emplace_back(outputs[i].begin, static_cast<std::uint32_t>(end));
      sealed.dead_tokens.insert(kShared + static_cast<Token>(i));
    }
    for (Token token = 0; token < 2; ++token) sealed.dead_tokens.insert(token);
    std::int64_t num_drafted = 0;
    for (const Text& text : {Text{0}, Text{1}, Text{0, 1}, Text{1, kShared}}) {
      check_drafts(sealed, text, 0.0, 64, num_drafted);
    }
    CHECK(num_drafted == 0);
  }
}

}  // namespace

int main() { return run({test_nothing_deleted_is_drafted, test_what_is_all_deleted_drafts_nothing}); }
