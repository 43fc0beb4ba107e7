// The indexes that are kept between the turns of conversations: which of them a prompt gets, and what it then
// contains.

#include "index/conversations.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "check.h"

namespace {

using namespace agentspec;
using namespace agentspec::test;

constexpr std::int32_t kMaxCounted = 20;

std::unique_ptr<TextIndex> make_index(const Text& text) {
  auto index = std::make_unique<TextIndex>(kMaxCounted);
  index->append(text);
  return index;
}

Text joined(const Text& a, const Text& b) {
  Text result = a;
  result.insert(result.end(), b.begin(), b.end());
  return result;
}

void test_digests_know_beginnings() {
  Random random(1);
  const Text text = draw_text(random, 300, 5);
  TextDigest whole;
  whole.append(text);
  CHECK(whole.length() == 300);
  CHECK(whole.blocks().size() == 300 / TextDigest::kBlock);
  for (std::size_t length = 0; length <= text.size(); ++length) {
    TextDigest digest;
    const std::span<const Token> all(text);
    digest.append(all.first(length / 2));
    digest.append(all.subspan(length / 2, length - length / 2));
    CHECK((digest.hash() == whole.hash()) == (length == text.size()));
    CHECK(std::equal(digest.blocks().begin(), digest.blocks().end(), whole.blocks().begin()));
    if (length > 0 && length % TextDigest::kBlock == 0) CHECK(digest.blocks().back() == digest.hash());
  }
  Text other = text;
  other[0] ^= 1;
  TextDigest changed;
  changed.append(other);
  for (std::size_t i = 0; i < whole.blocks().size(); ++i) CHECK(changed.blocks()[i] != whole.blocks()[i]);
}

void test_the_longest_beginning_is_taken() {
  Random random(2);
  const Text text = draw_text(random, 200, 5);
  const std::span<const Token> all(text);
  Conversations conversations(1 << 20);
  for (const std::size_t length : {40U, 120U, 80U}) {
    CHECK(conversations.put("a", make_index({text.begin(), text.begin() + length})).empty());
  }
  for (const std::size_t length : {120U, 80U, 40U}) {
    std::size_t num_known = 0;
    const std::unique_ptr<TextIndex> index = conversations.take("a", text, num_known);
    CHECK(index != nullptr && num_known == length && index->digest().length() == length);
    if (!index) continue;
    CHECK(!index->is_rewritten());
    index->append(all.subspan(num_known));
    CHECK(index->text() == text);
    index->check_integrity();
  }
  std::size_t num_known = 1;
  CHECK(conversations.take("a", text, num_known) == nullptr);
  CHECK(num_known == 0);
  CHECK(conversations.bytes() == 0);
}

void test_other_namespaces_and_other_texts_get_nothing() {
  Random random(3);
  const Text text = draw_text(random, 100, 5);
  Conversations conversations(1 << 20);
  CHECK(conversations.put("a", make_index(text)).empty());
  std::size_t num_known = 0;
  Text changed = text;
  changed[0] ^= 1;
  CHECK(conversations.take("b", text, num_known) == nullptr);
  CHECK(conversations.take("", text, num_known) == nullptr);
  CHECK(conversations.take("a", changed, num_known) == nullptr);
  CHECK(conversations.take("a", std::span<const Token>(text).first(99), num_known) == nullptr);
  CHECK(conversations.take("a", text, num_known) != nullptr);
}

void test_a_rewritten_text_shares_its_beginning() {
  Random random(4);
  for (int round = 0; round < 50; ++round) {
    const auto num_shared = static_cast<std::size_t>(draw(random, 256, 700));
    const Text beginning = draw_text(random, static_cast<std::int32_t>(num_shared), 5);
    const Text old = joined(beginning, draw_text(random, draw(random, 1, 200), 5));
    Conversations conversations(1 << 20);
    CHECK(conversations.put("a", make_index(old)).empty());
    Text text = beginning;
    std::size_t num_known = 0;
    std::unique_ptr<TextIndex> index;
    // The text is rewritten again and again: the valid pieces are found each time.
    for (int turn = 0; turn < 4; ++turn) {
      text.resize(text.size() - static_cast<std::size_t>(draw(random, 1, 40)));
      text.push_back(7);  // in no other text, so what follows is new
      text = joined(text, draw_text(random, draw(random, 130, 200), 5));
      index = conversations.take("a", text, num_known);
      if (index == nullptr) break;
      CHECK(num_known >= 192 && num_known % TextDigest::kBlock == 0 && num_known < text.size());
      CHECK(index->is_rewritten());
      CHECK(index->text() == Text(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(num_known)));
      CHECK(index->automaton().tail_length() == 0);
      index->append(std::span<const Token>(text).subspan(num_known));
      CHECK(index->text() == text);
      CHECK(index->digest().length() == text.size());
      index->check_integrity();
      CHECK(conversations.put("a", std::move(index)).empty());
    }
  }
}

void test_a_short_common_beginning_is_not_worth_it() {
  Random random(5);
  const Text beginning = draw_text(random, 256, 5);
  Conversations conversations(1 << 20);
  CHECK(conversations.put("short", make_index(joined(draw_text(random, 10, 5), beginning))).empty());
  // More than half of this one would be useless.
  CHECK(conversations.put("long", make_index(joined(beginning, draw_text(random, 300, 5)))).empty());
  const Text text = joined(beginning, Text(200, 9));
  std::size_t num_known = 0;
  CHECK(conversations.take("short", text, num_known) == nullptr);
  CHECK(conversations.take("long", text, num_known) == nullptr);
}

void test_the_budget_keeps_the_last_used() {
  Random random(6);
  std::vector<Text> texts;
  for (int i = 0; i < 6; ++i) texts.push_back(draw_text(random, 200, 5));
  const std::size_t one = make_index(texts[0])->bytes();
  Conversations conversations(one * 4);
  std::size_t num_freed = 0;
  for (const Text& text : texts) {
    num_freed += conversations.put("a", make_index(text)).size();
    CHECK(conversations.bytes() <= one * 4);
  }
  CHECK(num_freed >= 2);
  std::size_t num_known = 0;
  CHECK(conversations.take("a", texts.back(), num_known) != nullptr);
  CHECK(conversations.take("a", texts.front(), num_known) == nullptr);

  Conversations none(0);
  CHECK(none.put("a", make_index(texts[0])).size() == 1);
  CHECK(none.bytes() == 0);
}

void test_erasing() {
  Random random(7);
  const Text text = draw_text(random, 100, 5);
  Conversations conversations(1 << 20);
  for (const char* const name : {"a", "b", "a"}) CHECK(conversations.put(name, make_index(text)).empty());
  CHECK(conversations.erase("a").size() == 2);
  CHECK(conversations.erase("a").empty());
  CHECK(conversations.bytes() > 0);
  CHECK(conversations.clear().size() == 1);
  CHECK(conversations.bytes() == 0);
}

}  // namespace

int main() {
  return run({test_digests_know_beginnings, test_the_longest_beginning_is_taken,
              test_other_namespaces_and_other_texts_get_nothing, test_a_rewritten_text_shares_its_beginning,
              test_a_short_common_beginning_is_not_worth_it, test_the_budget_keeps_the_last_used,
              test_erasing});
}
