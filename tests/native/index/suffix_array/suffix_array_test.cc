// Compares sealed segments with brute force over small texts, and tests their bytes against damage. Meant to
// run under AddressSanitizer and UndefinedBehaviorSanitizer.

#include "index/suffix_array/suffix_array.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "index/suffix_array/segment_file.h"
#include "index/suffix_array/segment_layout.h"

namespace {

// Number of allocations before one fails; none fails while it is negative.
int allocations_left = -1;

}  // namespace

void* operator new(std::size_t size) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return std::malloc(size > 0 ? size : 1);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using agentspec::ContextMatch;
using agentspec::Interval;
using agentspec::kEnd;
using agentspec::OutputRecord;
using agentspec::Segment;
using agentspec::SegmentError;
using agentspec::Token;
using Text = std::vector<Token>;
using SegmentPtr = std::shared_ptr<const Segment>;

std::int64_t num_passed = 0;
std::int64_t num_failed = 0;

#define CHECK(condition)                                                  \
  do {                                                                    \
    if (condition) {                                                      \
      ++num_passed;                                                       \
    } else if (++num_failed <= 20) {                                      \
      std::printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                     \
  } while (false)

#define CHECK_THROWS(statement, Error) \
  do {                                 \
    bool thrown = false;               \
    try {                              \
      static_cast<void>(statement);    \
    } catch (const Error&) {           \
      thrown = true;                   \
    }                                  \
    CHECK(thrown);                     \
  } while (false)

using Random = std::mt19937;

std::int32_t draw(Random& random, std::int32_t low, std::int32_t high) {
  return std::uniform_int_distribution<std::int32_t>(low, high)(random);
}

std::vector<OutputRecord> outputs_of(const Text& text) {
  std::vector<OutputRecord> outputs;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = static_cast<std::size_t>(
        std::find(text.begin() + static_cast<std::ptrdiff_t>(begin), text.end(), kEnd) - text.begin());
    outputs.push_back({.id = 100 + outputs.size(),
                       .begin = static_cast<std::uint32_t>(begin),
                       .prompt_tail = static_cast<std::uint32_t>((end - begin) / 2),
                       .time = -static_cast<std::int64_t>(begin)});
    begin = end + 1;
  }
  return outputs;
}

Segment::Identity identity_of(std::int32_t num_token_ids) {
  Segment::Identity identity;
  identity.num_token_ids = num_token_ids;
  identity.tokenizer.fill(7);
  return identity;
}

SegmentPtr build(const Text& text, std::int32_t num_token_ids = 1000) {
  return Segment::build(text, outputs_of(text), identity_of(num_token_ids));
}

// Outputs that repeat one another: most of each text is copied from what came before it.
Text draw_text(Random& random, std::int32_t length, std::int32_t vocab_size, std::int32_t mean_copy) {
  Text text;
  while (static_cast<std::int32_t>(text.size()) < length) {
    if (!text.empty() && draw(random, 0, 2) > 0) {
      const auto from = static_cast<std::size_t>(draw(random, 0, static_cast<std::int32_t>(text.size()) - 1));
      const auto size = static_cast<std::size_t>(draw(random, 1, 2 * mean_copy));
      for (std::size_t i = from; i < std::min(from + size, text.size()); ++i) text.push_back(text[i]);
    } else {
      text.push_back(draw(random, 0, 9) == 0 ? kEnd : draw(random, 0, vocab_size - 1));
    }
  }
  text.push_back(kEnd);
  return text;
}

// The correct answers, found by comparing everything with everything.
class Brute {
 public:
  explicit Brute(Text text) : text_(std::move(text)), ranks_(text_.size()) {
    for (std::uint32_t p = 0; p < text_.size(); ++p) ranks_[p] = p;
    std::stable_sort(ranks_.begin(), ranks_.end(), [&](std::uint32_t a, std::uint32_t b) {
      const Text left = context(a);
      const Text right = context(b);
      return std::lexicographical_compare(left.begin(), left.end(), right.begin(), right.end());
    });
  }

  // The last token first, at most kDepth tokens.
  Text context(std::uint32_t p) const {
    Text result;
    while (p > 0 && text_[p - 1] != kEnd && result.size() < Segment::kDepth) result.push_back(text_[--p]);
    return result;
  }
  bool occurs_before(std::uint32_t p, const Text& pattern) const {
    for (std::size_t i = 1; i <= pattern.size(); ++i) {
      if (i > p || text_[p - i] == kEnd || text_[p - i] != pattern[pattern.size() - i]) return false;
    }
    return true;
  }
  Interval find(const Text& pattern) const {
    std::uint32_t begin = 0;
    while (begin < ranks_.size() && !occurs_before(ranks_[begin], pattern)) ++begin;
    std::uint32_t end = begin;
    while (end < ranks_.size() && occurs_before(ranks_[end], pattern)) ++end;
    return begin == end ? Interval{} : Interval{begin, end};
  }
  ContextMatch longest(const Text& context, std::int32_t max_length) const {
    const auto from = std::find(context.rbegin(), context.rend(), kEnd).base();
    const Text after_end(from, context.end());
    for (auto size = std::min<std::size_t>(after_end.size(), static_cast<std::size_t>(max_length));; --size) {
      const Interval found = find(Text(after_end.end() - static_cast<std::ptrdiff_t>(size), after_end.end()));
      if (!found.empty() || size == 0) return {static_cast<std::int32_t>(size), found};
    }
  }
  ContextMatch parent(Text pattern) const {
    const std::uint32_t size = find(pattern).size();
    while (!pattern.empty() && find(pattern).size() == size) pattern.erase(pattern.begin());
    return {static_cast<std::int32_t>(pattern.size()), find(pattern)};
  }

  const Text& text() const { return text_; }
  const std::vector<std::uint32_t>& ranks() const { return ranks_; }

 private:
  Text text_;
  std::vector<std::uint32_t> ranks_;
};

Text suffix(const Text& text, std::int32_t length) { return Text(text.end() - length, text.end()); }

// Compares every query along a walk of random tokens and tokens from the text.
void compare_queries(Random& random, const Segment& segment, const Brute& brute, std::int32_t vocab_size,
                     std::int32_t num_steps) {
  const Text& text = brute.text();
  const std::int32_t max_length = draw(random, 0, 3) == 0 ? draw(random, 1, 5) : Segment::kDepth;
  Text walk;
  ContextMatch match{0, segment.all()};
  std::size_t at = 0;
  for (std::int32_t i = 0; i < num_steps; ++i) {
    if (draw(random, 0, 19) == 0) at = static_cast<std::size_t>(draw(random, 0, INT32_MAX)) % text.size();
    const Token token = draw(random, 0, 29) == 0 ? draw(random, -1, vocab_size + 1) : text[at];
    at = (at + 1) % text.size();

    // Append one token to the pattern found so far, whatever its length.
    for (const std::int32_t length : {match.length, match.length / 2, 0}) {
      if (length == Segment::kDepth || token == kEnd) continue;
      Text pattern = suffix(walk, length);
      pattern.push_back(token);
      const Interval interval = segment.widen(match, length);
      CHECK(segment.extend(interval, token) == brute.find(pattern));
      const auto most = static_cast<std::int32_t>(Segment::kMaxExtended);
      Text tokens(static_cast<std::size_t>(draw(random, 0, most)));
      for (Token& other : tokens) other = draw(random, 0, vocab_size + 1);
      std::array<Interval, Segment::kMaxExtended> longer;
      segment.extend(interval, tokens, longer);
      for (std::size_t t = 0; t < tokens.size(); ++t) CHECK(longer[t] == segment.extend(interval, tokens[t]));
    }

    walk.push_back(token);
    match = segment.advance(match, token, max_length);
    CHECK(match == brute.longest(walk, max_length));
    CHECK(match == segment.locate(walk, max_length));
    const Text pattern = suffix(walk, match.length);
    const std::int32_t length = draw(random, 0, match.length);
    CHECK(segment.widen(match, length) == brute.find(suffix(pattern, length)));
    CHECK(segment.parent(match) == (match.length == 0 ? match : brute.parent(pattern)));
  }
}

void compare(Random& random, const Text& text, std::int32_t vocab_size, std::int32_t num_steps) {
  const Brute brute(text);
  const SegmentPtr segment = build(text);
  segment->check_integrity();
  CHECK(std::ranges::equal(segment->tokens(), text));
  for (std::uint32_t rank = 0; rank < text.size(); ++rank) {
    CHECK(segment->position(rank) == brute.ranks()[rank]);
    CHECK(segment->next(rank) == text[brute.ranks()[rank]]);
  }
  compare_queries(random, *segment, brute, vocab_size, num_steps);
}

void test_random_texts(Random& random) {
  for (std::int32_t i = 0; i < 300; ++i) {
    const std::int32_t vocab_size = draw(random, 1, i % 3 == 0 ? 400 : 5);
    compare(random, draw_text(random, draw(random, 1, 200), vocab_size, draw(random, 1, 30)), vocab_size, 40);
  }
}

// Patterns as long as the depth and longer, and groups of every size and every way of sorting.
void test_repeated_texts(Random& random) {
  for (const std::int32_t period : {1, 2, 7, 150}) {
    Text text;
    for (std::int32_t i = 0; i < 400; ++i) text.push_back(i % period);
    text.push_back(kEnd);
    compare(random, text, period, 160);
  }
  Text once;
  for (std::int32_t i = 0; i < 140; ++i) once.push_back(draw(random, 0, 99));
  once.push_back(kEnd);
  Text text;
  for (std::int32_t copy = 0; copy < 8; ++copy) {
    for (const Token token : once) text.push_back(token != kEnd && draw(random, 0, 99) == 0 ? 100 : token);
  }
  compare(random, text, 101, 200);

  // Large enough for the other ways of sorting; the segment checks itself.
  for (const std::int32_t copies : {40, 400}) {
    text.clear();
    for (std::int32_t copy = 0; copy < copies; ++copy) {
      for (const Token token : once)
        text.push_back(token != kEnd && draw(random, 0, 99) == 0 ? 100 + copy : token);
    }
    build(text)->check_integrity();
    build(text, 1 << 20)->check_integrity();
  }
  const Text same(5000, 3);
  text = same;
  text.push_back(kEnd);
  text.insert(text.end(), same.begin(), same.end());
  text.push_back(kEnd);
  build(text)->check_integrity();
}

void test_small_texts() {
  const SegmentPtr empty = build({});
  empty->check_integrity();
  CHECK(empty->num_points() == 0 && empty->all().empty() && empty->outputs().empty());
  const Text context = {1, 2};
  CHECK(empty->locate(context, 10) == (ContextMatch{0, {}}));
  CHECK(empty->advance({0, {}}, 1, 10) == (ContextMatch{0, {}}));
  CHECK(empty->parent({0, {}}) == (ContextMatch{0, {}}));
  CHECK(empty->extend({}, 1).empty());

  const SegmentPtr end = build({kEnd});
  end->check_integrity();
  CHECK(end->num_points() == 1 && end->next(0) == kEnd);

  const SegmentPtr one = build({2, kEnd});
  one->check_integrity();
  CHECK(one->locate(context, 10) == (ContextMatch{1, {1, 2}}));
  CHECK(one->next(0) == 2 && one->next(1) == kEnd);
}

void test_refused_arguments() {
  const auto identity = identity_of(10);
  const std::vector<OutputRecord> one = {{.id = 1, .begin = 0, .prompt_tail = 0, .time = 0}};
  CHECK_THROWS(Segment::build(Text{1, 2}, one, identity), agentspec::TokenError);
  CHECK_THROWS(Segment::build(Text{1, 10, kEnd}, one, identity), agentspec::TokenError);
  CHECK_THROWS(Segment::build(Text{1, -2, kEnd}, one, identity), agentspec::TokenError);
  CHECK_THROWS(Segment::build(Text{1, kEnd, 1, kEnd}, one, identity), agentspec::TokenError);
  CHECK_THROWS(Segment::build(Text{}, one, identity), agentspec::TokenError);
  const std::vector<OutputRecord> late = {{.id = 1, .begin = 1, .prompt_tail = 0, .time = 0}};
  CHECK_THROWS(Segment::build(Text{1, kEnd}, late, identity), agentspec::TokenError);
  const std::vector<OutputRecord> short_one = {{.id = 1, .begin = 0, .prompt_tail = 2, .time = 0}};
  CHECK_THROWS(Segment::build(Text{1, kEnd}, short_one, identity), agentspec::TokenError);
}

// A build that runs out of memory at any point leaves nothing behind.
void test_short_memory(Random& random) {
  const Text text = draw_text(random, 300, 5, 20);
  const std::vector<OutputRecord> outputs = outputs_of(text);
  const Segment::Identity identity = identity_of(10);
  int num_failures = 0;
  for (bool built = false; !built;) {
    allocations_left = num_failures;
    try {
      built = Segment::build(text, outputs, identity) != nullptr;
    } catch (const std::bad_alloc&) {
      ++num_failures;
    }
    allocations_left = -1;
  }
  CHECK(num_failures > 3);
}

// A folder that is removed at the end of the test.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("segment_test." + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return path_ / name; }
  std::ptrdiff_t num_files() const {
    return std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator());
  }

 private:
  std::filesystem::path path_;
};

std::vector<std::byte> bytes_of(const Segment& segment) {
  return {segment.blob().begin(), segment.blob().end()};
}

std::string error_of(std::vector<std::byte> blob, const Segment::Identity* expected = nullptr) {
  try {
    static_cast<void>(agentspec::from_blob(blob, expected));
  } catch (const SegmentError& error) {
    return error.what();
  }
  return "";
}

void test_round_trip(Random& random) {
  const Folder folder;
  const std::string path = folder.file("a");
  for (const std::int32_t length : {0, 5, 300}) {
    const Text text = length == 0 ? Text{} : draw_text(random, length, 50, 20);
    const SegmentPtr segment = build(text);
    agentspec::save(*segment, path);
    CHECK(folder.num_files() == 1);
    const auto identity = identity_of(1000);
    for (const SegmentPtr& other :
         {agentspec::load(path, &identity), agentspec::from_blob(bytes_of(*segment), &identity),
          agentspec::load(path, nullptr)}) {
      other->check_integrity();
      CHECK(std::ranges::equal(other->blob(), segment->blob()));
      CHECK(std::ranges::equal(other->outputs(), outputs_of(text)));
      CHECK(other->identity() == identity);
      if (length > 0) compare_queries(random, *other, Brute(text), 50, 20);
    }
  }
  // A mapped segment outlives the name of its file.
  const SegmentPtr mapped = agentspec::load(path, nullptr);
  agentspec::save(*build({1, kEnd}), path);
  mapped->check_integrity();
  CHECK(agentspec::load(path, nullptr)->num_points() == 2);

  CHECK_THROWS(agentspec::load(folder.file("none"), nullptr), std::exception);
  CHECK_THROWS(agentspec::save(*mapped, folder.file("none/a")), std::exception);
  CHECK(folder.num_files() == 1);
}

void test_refused_blobs() {
  const std::vector<std::byte> good = bytes_of(*build({1, 2, 1, 3, kEnd, 2, 1, kEnd}));
  CHECK(error_of(good).empty());
  // A change of any byte of the file is noticed.
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::vector<std::byte> bad = good;
      bad[i] ^= static_cast<std::byte>(flip);
      CHECK(!error_of(std::move(bad)).empty());
    }
  }
  for (std::size_t size = 0; size < good.size(); ++size) {
    const std::string error = error_of({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)});
    CHECK(error.find(size == 0 ? "not a segment" : "truncated") != std::string::npos);
  }
  std::vector<std::byte> longer = good;
  longer.resize(good.size() + 1);
  CHECK(error_of(longer).find("damaged") != std::string::npos);

  std::vector<std::byte> other = good;
  other[0] = std::byte{'x'};
  CHECK(error_of(other).find("not a segment") != std::string::npos);
  other = good;
  other[offsetof(agentspec::SegmentHeader, version)] = std::byte{9};
  CHECK(error_of(other).find("version 9") != std::string::npos);
  other = good;
  other[offsetof(agentspec::SegmentHeader, byte_order)] = std::byte{1};
  CHECK(error_of(other).find("byte order") != std::string::npos);

  auto identity = identity_of(1000);
  CHECK(error_of(good, &identity).empty());
  identity.num_token_ids = 999;
  CHECK(error_of(good, &identity).find("999 token ids") != std::string::npos);
  identity = identity_of(1000);
  identity.tokenizer[0] = 0xab;
  CHECK(error_of(good, &identity).find("ab07") != std::string::npos);
  identity = identity_of(1000);
  identity.kind = agentspec::SegmentKind::kCorpus;
  CHECK(error_of(good, &identity).find("corpus") != std::string::npos);
}

// Damage that the checksums do not reveal: an accepted segment must answer every query within its bounds.
void test_forged_blobs(Random& random) {
  const Text text = draw_text(random, 150, 6, 20);
  const std::vector<std::byte> good = bytes_of(*build(text));
  std::int64_t num_accepted = 0;
  for (std::int32_t i = 0; i < 4000; ++i) {
    std::vector<std::byte> forged = good;
    for (std::int32_t changes = draw(random, 1, 3); changes > 0; --changes) {
      const auto at = static_cast<std::size_t>(
          draw(random, sizeof(agentspec::SegmentHeader), static_cast<std::int32_t>(good.size()) - 1));
      forged[at] =
          static_cast<std::byte>(draw(random, 0, 3) == 0 ? draw(random, 0, 255) : draw(random, 0, 9));
    }
    agentspec::seal_checksums(forged);
    SegmentPtr segment;
    try {
      segment = agentspec::from_blob(forged, nullptr);
    } catch (const SegmentError&) {
      continue;
    }
    ++num_accepted;
    const std::uint32_t n = segment->num_points();
    const auto is_valid = [&](const ContextMatch& match) {
      return match.length >= 0 && match.length <= Segment::kDepth && match.interval.end <= n;
    };
    ContextMatch match{0, segment->all()};
    for (const Token token : text) {
      match = segment->advance(match, token, 100);
      CHECK(is_valid(match));
      CHECK(segment->extend(match.interval, token).end <= n);
      for (ContextMatch shorter = match; shorter.length > 0;) {
        const ContextMatch parent = segment->parent(shorter);
        CHECK(is_valid(parent) && parent.length < shorter.length);
        shorter = parent;
      }
    }
    CHECK(is_valid(segment->locate(text, 100)));
    for (std::uint32_t rank = 0; rank < n; ++rank) {
      CHECK(segment->position(rank) < n && segment->next(rank) >= kEnd);
    }
  }
  CHECK(num_accepted > 0);
}

}  // namespace

int main() {
  Random random(20240229);
  try {
    test_small_texts();
    test_random_texts(random);
    test_repeated_texts(random);
    test_refused_arguments();
    test_short_memory(random);
    test_round_trip(random);
    test_refused_blobs();
    test_forged_blobs(random);
  } catch (const std::exception& error) {
    std::printf("unexpected exception: %s\n", error.what());
    ++num_failed;
  }
  std::printf("%lld passed, %lld failed\n", static_cast<long long>(num_passed),
              static_cast<long long>(num_failed));
  return num_failed == 0 ? 0 : 1;
}
