// Drafters on a CPU: kernels against sums in double precision, with and without the machine's own
// instructions, and passes against each other. What a pass computes is held against torch by the Python
// tests.

#include "llama.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "check.h"
#include "errors.h"
#include "float_kernels.h"
#include "llama_parts.h"
#include "llama_texts.h"
#include "llama_trees.h"
#include "packed_matrix.h"

using namespace agentspec;
using namespace agentspec::test;

namespace {

std::vector<float> drawn(Random& random, std::size_t size, float spread = 1.0F) {
  std::normal_distribution<float> normal(0.0F, spread);
  std::vector<float> values(size);
  for (float& value : values) value = normal(random);
  return values;
}

bool is_near(float a, double b, double slack = 1e-4) {
  return std::abs(static_cast<double>(a) - b) <= slack * (1.0 + std::abs(b));
}

void products_are_sums(Random& random) {
  for (std::size_t n = 1; n <= 15; ++n) {
    const std::size_t inputs = 1 + random() % 40;
    const std::size_t outputs = 1 + random() % 70;
    const std::vector<float> weights = drawn(random, outputs * inputs);
    const std::vector<float> x = drawn(random, n * inputs);
    const std::vector<float> before = drawn(random, n * outputs);
    const PackedMatrix matrix(weights, outputs, inputs);
    std::vector<float> out(n * outputs);
    std::vector<float> added = before;
    matrix.multiply(x, n, out);
    matrix.multiply_add(x, n, added);
    bool holds = true;
    for (std::size_t i = 0; i < n * outputs; ++i) {
      double sum = 0.0;
      for (std::size_t k = 0; k < inputs; ++k) {
        sum += static_cast<double>(x[i / outputs * inputs + k]) * weights[i % outputs * inputs + k];
      }
      holds = holds && is_near(out[i], sum) && is_near(added[i], sum + before[i]);
    }
    CHECK(holds);
  }
}

void kernels_hold(Random& random, const FloatKernels& kernels) {
  for (std::size_t size = 1; size <= 41; ++size) {
    std::vector<float> x = drawn(random, size, 30.0F);
    const double largest = *std::ranges::max_element(x);
    double total = 0.0;
    for (const float value : x) total += std::exp(static_cast<double>(value) - largest);
    std::vector<double> wanted;
    for (const float value : x) wanted.push_back(std::exp(static_cast<double>(value) - largest) / total);
    kernels.softmax(x.data(), size);
    CHECK(std::ranges::equal(x, wanted, [](float a, double b) { return std::abs(a - b) < 1e-6; }));
  }
  for (const std::size_t size : {16U, 48U, 128U}) {
    const std::vector<float> x = drawn(random, 2 * size, 20.0F);
    std::vector<float> out(size);
    kernels.gate(x.data(), size, out.data());
    bool holds = true;
    for (std::size_t i = 0; i < size; ++i) {
      const double value = x[i];
      holds = holds && is_near(out[i], value / (1.0 + std::exp(-value)) * x[size + i]);
    }
    CHECK(holds);
    const std::vector<float> weight = drawn(random, size);
    kernels.normalise(x.data(), weight.data(), size, 1e-5F, out.data());
    double squares = 0.0;
    for (std::size_t i = 0; i < size; ++i) squares += static_cast<double>(x[i]) * x[i];
    const double length = std::sqrt(squares / static_cast<double>(size) + 1e-5);
    for (std::size_t i = 0; i < size; ++i) CHECK(is_near(out[i], x[i] / length * weight[i]));
  }
}

void attention_is_a_weighted_mean(Random& random, const FloatKernels& kernels) {
  for (const std::size_t size : {16U, 64U, 80U}) {
    constexpr std::size_t kHeads = 4;
    constexpr std::size_t kKvHeads = 2;
    const std::size_t length = 1 + random() % 20;
    const std::vector<float> q = drawn(random, kHeads * size);
    const std::vector<float> k = drawn(random, length * kKvHeads * size);
    const std::vector<float> v = drawn(random, length * kKvHeads * size);
    std::vector<const float*> keys, values;
    for (std::size_t t = 0; t < length; ++t) {
      keys.push_back(k.data() + t * kKvHeads * size);
      values.push_back(v.data() + t * kKvHeads * size);
    }
    std::vector<float> scores(length), out(kHeads * size);
    kernels.attend(q.data(), kHeads, kKvHeads, size, {keys, values}, 0.3F, scores.data(), out.data());
    bool holds = true;
    for (std::size_t head = 0; head < kHeads; ++head) {
      std::vector<double> weights(length);
      double total = 0.0;
      for (std::size_t t = 0; t < length; ++t) {
        double dot = 0.0;
        for (std::size_t i = 0; i < size; ++i) {
          dot += static_cast<double>(q[head * size + i]) * keys[t][head / 2 * size + i];
        }
        total += weights[t] = std::exp(0.3 * dot);
      }
      for (std::size_t i = 0; i < size; ++i) {
        double mean = 0.0;
        for (std::size_t t = 0; t < length; ++t) mean += weights[t] / total * values[t][head / 2 * size + i];
        holds = holds && is_near(out[head * size + i], mean);
      }
    }
    CHECK(holds);
  }
}

// A model with its weights and cache.
struct Drawn {
  Drawn(Random& random, bool head, std::size_t num_layers)
      : shape{32, 2, 1, 16, 24, 40, 40, 64, 1e-5F},
        embed(drawn(random, 40 * 32)),
        rotary(drawn(random, 64 * 16)),
        fc(drawn(random, head ? 32 * 96 : 0, 0.1F)),
        norm(32, 1.0F),
        hidden_norm(head ? 32 : 0, 1.0F),
        qkv(drawn(random, 64 * (head ? 64 : 32), 0.2F)),
        out(drawn(random, 32 * 32, 0.2F)),
        gate_up(drawn(random, 48 * 32, 0.2F)),
        down(drawn(random, 32 * 24, 0.2F)),
        lm_head(drawn(random, 40 * 32, 0.3F)),
        cached(num_layers * 2, std::vector<float>(kSlots * 16)) {
    for (std::size_t layer = 0; layer < num_layers; ++layer)
      caches.push_back({cached[2 * layer], cached[2 * layer + 1]});
  }

  [[nodiscard]] Llama model() const {
    LlamaWeights weights{embed, rotary, fc, {}, {}, norm, lm_head};
    for (std::size_t i = 0; i < caches.size(); ++i) {
      weights.layers.push_back({norm, hidden_norm, qkv, out, norm, gate_up, down});
    }
    return Llama(shape, weights);
  }

  static constexpr std::size_t kSlots = 30;
  LlamaShape shape;
  std::vector<float> embed, rotary, fc, norm, hidden_norm, qkv, out, gate_up, down, lm_head;
  std::vector<std::vector<float>> cached;
  std::vector<LayerCache> caches;
};

bool are_near(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(a, b, [](float x, float y) { return is_near(x, y, 1e-3); });
}

// A text read at once, token by token, and as a branch behind its first token.
void texts_may_be_read_in_parts(Random& random, std::size_t num_layers) {
  Drawn all(random, false, num_layers);
  Llama model = all.model();
  std::vector<std::int32_t> slots;
  for (std::int32_t i = 0; i < 12; ++i) slots.push_back((i * 7 + 3) % 30);
  std::vector<std::int64_t> tokens;
  for (std::size_t i = 0; i < slots.size(); ++i) tokens.push_back(static_cast<std::int64_t>(random() % 40));
  std::vector<float> whole, state, part, normed;
  const TextEnd text{slots, tokens};
  read_texts(model, all.caches, {&text, 1}, {}, whole, state);
  for (std::size_t end = 1; end <= slots.size(); ++end) {
    const TextEnd one{std::span(slots).first(end), std::span(tokens).subspan(end - 1, 1)};
    read_texts(model, all.caches, {&one, 1}, {}, part, state);
  }
  CHECK(are_near(whole, part));
  model.clear_grown();
  std::vector<std::uint32_t> branch;
  const std::vector<std::size_t> ends{0};
  for (std::size_t i = 1; i < slots.size(); ++i) {
    branch.push_back(static_cast<std::uint32_t>(i - 1));
    const ReadToken token{tokens[i], static_cast<std::int64_t>(i), std::span(slots).first(1), branch, -1};
    model.read({&token, 1}, {}, all.caches, ends, normed, state);
  }
  model.logits(normed, 1, part);
  CHECK(are_near(whole, part));
}

void trees_have_the_likeliest_nodes(Random& random) {
  Drawn all(random, true, 1);
  LlamaParts models(all.model(), 1);
  const std::vector<std::int32_t> slots{4, 9, 2};
  const std::vector<std::int64_t> tokens{1, 2, 3};
  const std::vector<float> hidden = drawn(random, 3 * 96);
  std::vector<float> logits, state;
  const TextEnd text{slots, tokens};
  read_texts(models.first(), all.caches, {&text, 1}, hidden, logits, state);
  const std::vector<std::span<const std::int32_t>> texts{slots};
  const std::vector<float> p{0.6F, 0.3F};
  const std::vector<std::int64_t> index{5, 7};
  const TreeRoots roots{texts, p, index, state};
  const DraftedTrees tree = draft_trees(models, all.caches, roots, nullptr, {}, {2, 5, 9, 0.0});
  CHECK(tree.num_passes == 5 && tree.chosen.size() == 9 && tree.parents.size() == 1 + 2 + 2 * 3);
  CHECK(tree.tokens[0] == 5 && tree.estimates[0] == 0.6F);
  CHECK(std::ranges::is_sorted(tree.chosen));
  for (std::size_t i = 0; i < tree.chosen.size(); ++i) {
    const std::int64_t parent = tree.parents[static_cast<std::size_t>(tree.chosen[i]) / 2];
    const auto found = std::ranges::find(tree.chosen, parent);
    // What a node hangs on is as likely or likelier, hence in the tree.
    CHECK(parent == -1 ||
          (found != tree.chosen.end() &&
           tree.estimates[static_cast<std::size_t>(found - tree.chosen.begin())] >= tree.estimates[i]));
  }
  CHECK(draft_trees(models, all.caches, roots, nullptr, {}, {2, 5, 9, 3.0}).num_passes == 1);
  CHECK_THROWS(draft_trees(models, all.caches, {texts, p, index, {}}, nullptr, {}, {2, 5, 9, 0.0}),
               ConfigError);
}

// Rows shared out over threads: the same trees as on one, and the failure of a part is thrown.
void rows_may_be_shared_out(Random& random, bool head) {
  constexpr std::size_t kRows = 5;
  Drawn all(random, head, head ? 1 : 2);
  std::vector<std::vector<std::int32_t>> slots(kRows);
  std::vector<std::vector<std::int64_t>> tokens(kRows);
  std::vector<TextEnd> ends;
  std::size_t num_tokens = 0;
  for (std::size_t row = 0; row < kRows; ++row) {
    const std::size_t length = 2 + random() % 4;
    for (std::size_t i = 0; i < length; ++i) slots[row].push_back(static_cast<std::int32_t>(row * 6 + i));
    for (std::size_t i = 0; i < length; ++i) tokens[row].push_back(static_cast<std::int64_t>(random() % 40));
    ends.push_back({slots[row], tokens[row]});
    num_tokens += length;
  }
  const std::vector<float> hidden = drawn(random, head ? num_tokens * 96 : 0);
  const std::vector<std::span<const std::int32_t>> texts(slots.begin(), slots.end());
  std::vector<float> likeliest;
  std::vector<std::int64_t> index;
  for (std::size_t row = 0; row < kRows; ++row) {
    likeliest.insert(likeliest.end(), {0.6F, 0.3F});
    index.insert(index.end(), {static_cast<std::int64_t>(row), static_cast<std::int64_t>(row + 9)});
  }
  std::vector<float> logits, state;
  DraftedTrees wanted;
  for (const std::size_t num_threads : {1U, 2U, 3U, 8U}) {
    LlamaParts models(all.model(), num_threads);
    CHECK(models.split(kRows).size() - 1 == std::min<std::size_t>(num_threads, kRows));
    read_texts(models.first(), all.caches, ends, hidden, logits, state);
    const std::span<const float> states = head ? std::span<const float>(state) : std::span<const float>();
    const DraftedTrees trees =
        draft_trees(models, all.caches, {texts, likeliest, index, states}, nullptr, {}, {2, 4, 7, 0.0});
    if (num_threads == 1) {
      wanted = trees;
      continue;
    }
    CHECK(trees.num_passes == 4 && trees.tokens == wanted.tokens && trees.parents == wanted.parents &&
          trees.chosen == wanted.chosen && are_near(trees.estimates, wanted.estimates));
    const std::int64_t unknown = std::exchange(index.back(), 40);
    CHECK_THROWS(
        draft_trees(models, all.caches, {texts, likeliest, index, states}, nullptr, {}, {2, 4, 7, 0.0}),
        ConfigError);
    index.back() = unknown;
    // A slot that the cache does not have is found by the part that reads it.
    const std::int32_t slot = std::exchange(slots.back().back(), 1000);
    CHECK_THROWS(
        draft_trees(models, all.caches, {texts, likeliest, index, states}, nullptr, {}, {2, 4, 7, 0.0}),
        ConfigError);
    slots.back().back() = slot;
  }
}

}  // namespace

int main() {
  Random random(1);
  return run({[&] { products_are_sums(random); },
              [&] {
                for (const FloatKernels* kernels : {&float_kernels(), &portable_float_kernels()}) {
                  kernels_hold(random, *kernels);
                  attention_is_a_weighted_mean(random, *kernels);
                }
              },
              [&] {
                for (const std::size_t num_layers : {1U, 3U}) texts_may_be_read_in_parts(random, num_layers);
              },
              [&] { trees_have_the_likeliest_nodes(random); },
              [&] {
                for (const bool head : {false, true}) rows_may_be_shared_out(random, head);
              }});
}
