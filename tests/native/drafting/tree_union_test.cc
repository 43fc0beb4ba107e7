#include "drafting/tree_union.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>

#include "check.h"
#include "drafting/foreseen_union.h"
#include "errors.h"

namespace {

using agentspec::ConfigError;
using agentspec::Token;
using agentspec::TreeUnion;
using agentspec::UnionConfig;
using agentspec::UnionRule;
using agentspec::test::draw;
using agentspec::test::Random;

constexpr UnionRule kRules[] = {UnionRule::kMerge, UnionRule::kInterleave, UnionRule::kBetter,
                                UnionRule::kModel, UnionRule::kModelOnly};

// Owns the arrays that a call reads for one batch.
struct Batch {
  std::vector<std::int32_t> offsets = {0};
  std::vector<Token> tokens;
  std::vector<std::int32_t> parents;
  std::vector<float> estimates;
  std::vector<std::uint8_t> sources;
  std::vector<std::int32_t> match_lens;
  std::vector<std::int64_t> groups;
  std::vector<std::int64_t> chosen;
  std::vector<std::int64_t> model_tokens;
  std::vector<float> model_estimates;
  std::size_t num_groups = 0;
  std::size_t num_chosen = 0;
  std::int64_t topk = 1;
  std::vector<char> wanted;  // read as bool
  std::vector<std::int32_t> rooms;

  // Adds a row whose suffix draft has these nodes behind its root.
  void add(Token root, const std::vector<Token>& nodes, const std::vector<std::int32_t>& node_parents,
           const std::vector<float>& chances) {
    tokens.push_back(root);
    parents.push_back(-1);
    estimates.push_back(1.0F);
    sources.push_back(0);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      tokens.push_back(nodes[i]);
      parents.push_back(node_parents[i]);
      estimates.push_back(chances[i]);
      sources.push_back(1);
    }
    offsets.push_back(static_cast<std::int32_t>(tokens.size()));
    match_lens.push_back(3);
    wanted.push_back(1);
    rooms.push_back(100);
  }

  [[nodiscard]] TreeUnion united(const UnionConfig& config) const {
    const auto flags = std::make_unique<bool[]>(wanted.size());
    std::copy(wanted.begin(), wanted.end(), flags.get());
    return agentspec::unite({offsets, tokens, parents, estimates, sources, match_lens},
                            {groups, chosen, model_tokens, model_estimates, num_groups, num_chosen, topk},
                            {flags.get(), wanted.size()}, rooms, config);
  }
};

// One row: a suffix draft of 1, 2 and a draft model's tree of 1, 3, as the drafting loop of a chain chooses
// it.
Batch small() {
  Batch batch;
  batch.add(9, {1, 2}, {0, 1}, {0.5F, 0.4F});
  batch.groups = {-1, 0};
  batch.chosen = {0, 1};
  batch.model_tokens = {1, 3};
  batch.model_estimates = {0.8F, 0.4F};
  batch.num_groups = batch.num_chosen = 2;
  return batch;
}

void test_rows_that_want_nothing_are_not_read() {
  Batch batch = small();
  batch.wanted[0] = 0;
  batch.groups.clear();
  batch.chosen = {-8};
  batch.topk = 0;
  CHECK((batch.united({.max_nodes = 8}).tokens == std::vector<Token>{9, 1, 2}));
}

void test_refused() {
  const auto refused = [](auto&& change) {
    Batch batch = small();
    change(batch);
    CHECK_THROWS((void)batch.united({.max_nodes = 8}), ConfigError);
  };
  CHECK_THROWS((void)small().united({.max_nodes = 0}), ConfigError);
  refused([](Batch& b) { b.topk = 0; });
  refused([](Batch& b) { b.offsets.clear(); });
  refused([](Batch& b) { b.offsets = {0, 2}; });
  refused([](Batch& b) { b.offsets = {0, 0, 3}; });
  refused([](Batch& b) { b.offsets = {0, 4, 3}; });
  refused([](Batch& b) { b.offsets = {-1, 3}; });
  refused([](Batch& b) { b.parents = {-1, 2, 1}; });
  refused([](Batch& b) { b.parents = {-1, 0, -1}; });
  refused([](Batch& b) { b.parents = {0, 0, 1}; });
  refused([](Batch& b) { b.rooms.clear(); });
  refused([](Batch& b) { b.sources.pop_back(); });
  refused([](Batch& b) { b.chosen = {1, 0}; });
  refused([](Batch& b) { b.chosen = {0, 5}; });
  refused([](Batch& b) { b.chosen = {0, std::numeric_limits<std::int64_t>::max()}; });
  refused([](Batch& b) { b.model_tokens = {1, -1}; });
  refused([](Batch& b) { b.model_tokens = {1, std::int64_t{1} << 31}; });
  refused([](Batch& b) { b.groups.pop_back(); });
}

// Adds a suffix draft over few tokens, with ties, siblings with the same token, and children that are
// likelier than their parents.
void add_random_row(Random& random, Batch& batch) {
  std::vector<Token> tokens;
  std::vector<std::int32_t> parents;
  std::vector<float> estimates;
  const int size = draw(random, 0, 20);
  for (int i = 0; i < size; ++i) {
    tokens.push_back(draw(random, 0, 3));
    parents.push_back(draw(random, 0, i));
    estimates.push_back(static_cast<float>(draw(random, 0, 8)) / 8.0F);
  }
  batch.add(draw(random, 0, 99), tokens, parents, estimates);
}

// Adds candidates in random order of likelihood, with parents that may be missing.
void add_random_loop(Random& random, Batch& batch) {
  const std::size_t rows = batch.rooms.size();
  batch.topk = draw(random, 1, 4);
  batch.num_groups = static_cast<std::size_t>(draw(random, 1, 9));
  const auto candidates = static_cast<std::int32_t>(batch.num_groups) * static_cast<std::int32_t>(batch.topk);
  batch.num_chosen = static_cast<std::size_t>(draw(random, 0, candidates));
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t group = 0; group < batch.num_groups; ++group) {
      batch.groups.push_back(draw(random, -1, std::max(0, static_cast<std::int32_t>(group * 2) - 1)));
    }
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(candidates));
    std::iota(numbers.begin(), numbers.end(), 0);
    std::shuffle(numbers.begin(), numbers.end(), random);
    std::sort(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(batch.num_chosen));
    for (std::size_t i = 0; i < batch.num_chosen; ++i) {
      batch.chosen.push_back(numbers[i]);
      batch.model_tokens.push_back(draw(random, 0, 3));
      const int kind = draw(random, 0, 19);
      batch.model_estimates.push_back(kind == 0   ? std::numeric_limits<float>::quiet_NaN()
                                      : kind == 1 ? std::numeric_limits<float>::infinity()
                                      : kind == 2 ? -1.0F
                                                  : static_cast<float>(draw(random, 0, 16)) / 16.0F);
    }
  }
}

void check_tree(std::span<const std::int32_t> parents, std::span<const float> estimates,
                std::size_t max_nodes) {
  CHECK(!parents.empty() && parents[0] == -1 && parents.size() <= max_nodes + 1);
  for (std::size_t node = 1; node < parents.size(); ++node) {
    CHECK(parents[node] >= 0 && parents[node] < static_cast<std::int32_t>(node));
    CHECK(estimates[node] >= 0.0F);
  }
}

void test_random_batches() {
  Random random(7);
  for (int round = 0; round < 3000; ++round) {
    Batch batch;
    const int rows = draw(random, 0, 5);
    for (int i = 0; i < rows; ++i) add_random_row(random, batch);
    add_random_loop(random, batch);
    for (char& flag : batch.wanted) flag = static_cast<char>(draw(random, 0, 3) > 0);
    for (std::int32_t& room : batch.rooms) room = draw(random, -1, 20);
    if (rows > 0 && round % 9 == 0) batch.rooms[0] = std::numeric_limits<std::int32_t>::min();
    const UnionConfig config{.rule = kRules[static_cast<std::size_t>(draw(random, 0, 4))],
                             .trees = draw(random, 0, 3) > 0,
                             .max_nodes = draw(random, 1, 16),
                             .min_estimate = draw(random, 0, 1) * 0.2,
                             .factor = draw(random, 1, 8) * 0.25};
    const TreeUnion result = batch.united(config);
    for (std::size_t row = 0; row < batch.rooms.size(); ++row) {
      const auto part = [row](const auto& offsets, const auto& values) {
        const auto first = static_cast<std::size_t>(offsets[row]);
        return std::span(values).subspan(first, static_cast<std::size_t>(offsets[row + 1]) - first);
      };
      const auto parents = part(result.offsets, result.parents);
      const auto estimates = part(result.offsets, result.estimates);
      const auto own = part(batch.offsets, batch.parents);
      const auto drafted = part(result.model_offsets, result.model_parents);
      CHECK(part(result.offsets, result.tokens)[0] == part(batch.offsets, batch.tokens)[0]);
      if (batch.wanted[row] == 0) {
        check_tree(parents, estimates, 20);
        CHECK(drafted.empty() && (config.rule == UnionRule::kModelOnly || parents.size() == own.size()));
        continue;
      }
      const auto cap = static_cast<std::size_t>(std::clamp(batch.rooms[row], 0, config.max_nodes));
      check_tree(parents, estimates, cap);
      check_tree(drafted, part(result.model_offsets, result.model_estimates), cap);
      if (!config.trees) {
        for (std::size_t node = 1; node < drafted.size(); ++node) {
          CHECK(drafted[node] == static_cast<std::int32_t>(node) - 1);
        }
      }
      if (result.alone[row] != 0)
        CHECK(std::equal(parents.begin(), parents.end(), drafted.begin(), drafted.end()));
    }
    CHECK(static_cast<std::size_t>(result.offsets.back()) == result.tokens.size());
  }
}

void test_foreseen_unions() {
  for (unsigned seed = 0; seed < 500; ++seed) {
    Random random(seed);
    Batch batch;
    const int rows = draw(random, 0, 5);
    for (int i = 0; i < rows; ++i) add_random_row(random, batch);
    for (std::int32_t& room : batch.rooms) room = draw(random, -1, 12);
    std::vector<double> promised;
    const auto flags = std::make_unique<bool[]>(batch.rooms.size());
    for (std::size_t row = 0; row < batch.rooms.size(); ++row) {
      promised.push_back(draw(random, 0, 60) * 0.1);
      flags[row] = draw(random, 0, 2) > 0;
    }
    const std::int64_t passes = draw(random, 1, 6);
    const agentspec::KnownDrafts known{
        batch.offsets, batch.parents, batch.estimates,       promised, {flags.get(), batch.rooms.size()},
        batch.rooms,   passes,        draw(random, 0, 2) > 0};
    const auto result = agentspec::foresee_union(known);
    CHECK(static_cast<std::size_t>(result.offsets.back()) == result.parents.size());
    for (std::size_t row = 0; row < batch.rooms.size(); ++row) {
      const auto first = static_cast<std::size_t>(result.offsets[row]);
      const std::size_t size = static_cast<std::size_t>(result.offsets[row + 1]) - first;
      const auto room = static_cast<std::size_t>(std::max(batch.rooms[row], 0));
      check_tree(std::span(result.parents).subspan(first, size),
                 std::span(result.estimates).subspan(first, size), room);
      const auto own = static_cast<std::size_t>(batch.offsets[row + 1] - batch.offsets[row]) - 1;
      const std::size_t chain = flags[row] ? static_cast<std::size_t>(passes) : 0;
      if (known.trees) {
        CHECK(size - 1 == std::min(room, own + chain));
      } else {
        CHECK(size - 1 == std::min(room, own) || size - 1 == std::min(room, chain));
      }
    }
    agentspec::KnownDrafts wrong = known;
    wrong.passes = 0;
    CHECK_THROWS((void)agentspec::foresee_union(wrong), ConfigError);
    if (rows == 0) continue;
    batch.rooms.pop_back();
    wrong = known;
    wrong.rooms = batch.rooms;
    CHECK_THROWS((void)agentspec::foresee_union(wrong), ConfigError);
  }
}

}  // namespace

int main() {
  return agentspec::test::run(
      {test_rows_that_want_nothing_are_not_read, test_refused, test_random_batches, test_foreseen_unions});
}
